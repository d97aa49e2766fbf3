"""A measured process: ``python -m benches.harness.child`` answers line by line until input ends.

A line is a task and a question, ``measure {...}``, for one loader after another workload; an answer
that failed is a line ``{"error": ...}``.

It watches from its first line on for modules that are compiled in this process
instead of being loaded from their ``.pyc``: on CPython 3.13t such code keeps
reference-counted constants, and threads that share it slow each other down.
"""

from __future__ import annotations

import faulthandler
import json
import os
import sys
import traceback
from dataclasses import asdict, replace
from importlib.machinery import SourceFileLoader
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from benches.harness.record import Question

__all__ = ["HANG_S", "watch_compilation"]

HANG_S = 240.0  # a measurement that takes longer hangs: print all stacks, and end


def watch_compilation() -> list[str]:
    """Return a list that each module without a valid ``.pyc`` adds its name to."""
    names: list[str] = []
    compile_source = SourceFileLoader.source_to_code

    def source_to_code(loader: SourceFileLoader, data: Any, path: Any, **options: Any) -> Any:
        names.append(loader.name)
        return compile_source(loader, data, path, **options)

    SourceFileLoader.source_to_code = source_to_code  # type: ignore[assignment,method-assign]
    return names


def main() -> None:
    """Answer on what was standard output; what packages print goes to the errors."""
    uncached = watch_compilation()
    # Only torch.compile needs triton, and (3.7) importing it turns the GIL on for good.
    sys.modules.setdefault("triton", None)  # type: ignore[arg-type]  # as if it were not installed
    replies = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    for line in sys.stdin:
        faulthandler.dump_traceback_later(HANG_S, exit=True)
        task, _, asked = line.strip().partition(" ")
        from benches.harness.record import Question

        question = Question(**json.loads(asked))
        try:
            reply = _compare(question) if task == "compare" else _measure(question, uncached)
        except Exception:  # noqa: BLE001  # whatever a rival raises is its answer
            reply = {"error": traceback.format_exc()[-4000:]}
        faulthandler.cancel_dump_traceback_later()
        if task == "measure":
            uncached.clear()
        print(json.dumps(reply), file=replies)


def _measure(question: Question, uncached: list[str]) -> dict[str, Any]:
    if question.workload == "imports":
        from benches.harness.importing import measure_import

        found = measure_import()
    else:
        from benches.harness.measurement import answer

        found = answer(question)
    from benches.harness.machine import describe

    return asdict(replace(found, uncached=list(uncached), machine=describe()))


def _compare(question: Question) -> dict[str, int]:
    """Compare a short epoch with the dataset; return the number of samples."""
    from benches.harness.delivered import compare
    from benches.harness.measurement import make_setup
    from benches.loaders.catalog import import_rival
    from benches.workloads.catalog import WORKLOADS

    workload = WORKLOADS[question.workload]
    rival = import_rival(question.loader)
    setup = make_setup(question, workload, batches=1 if workload.parallel else 3)
    loader = rival(setup)
    samples = compare(workload, setup.dataset, loader)
    loader.close()
    return {"compared": samples}


if __name__ == "__main__":
    main()
