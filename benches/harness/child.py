"""The entry of a measured process: ``python -m benches.harness.child QUESTION``.

With ``--serve`` it answers questions that come on standard input, a line each, for one loader
after another workload, until the input ends; an answer that failed is a line ``{"error": ...}``.

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
from dataclasses import replace
from importlib.machinery import SourceFileLoader
from typing import Any

__all__ = ["HANG_S", "main", "watch_compilation"]

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
    """Answer the question in ``sys.argv[1]``, or those on standard input."""
    uncached = watch_compilation()
    # Only torch.compile needs triton, and (3.7) importing it turns the GIL on for good.
    sys.modules.setdefault("triton", None)  # type: ignore[arg-type]  # as if it were not installed
    if sys.argv[1] == "--serve":
        _serve(uncached)
    else:
        print(_answer(sys.argv[1], uncached))


def _answer(line: str, uncached: list[str]) -> str:
    """Measure; return the answer as a line."""
    faulthandler.dump_traceback_later(HANG_S, exit=True)
    from benches.harness.importing import measure_import
    from benches.harness.record import Question
    from benches.workloads.catalog import WORKLOADS

    question = Question.from_json(line)
    if WORKLOADS[question.workload].kind == "import":
        found = measure_import(question)
    else:
        from benches.harness.measurement import answer

        found = answer(question)
    faulthandler.cancel_dump_traceback_later()
    from benches.harness.machine import describe

    return replace(found, uncached=list(uncached), machine=describe()).to_json()


def _compare(line: str) -> str:
    """Compare a short epoch with the dataset; return the number of samples as a line."""
    faulthandler.dump_traceback_later(HANG_S, exit=True)
    from benches.harness.delivered import compare
    from benches.harness.measurement import make_setup
    from benches.harness.record import Question
    from benches.loaders.catalog import import_rival
    from benches.workloads.catalog import WORKLOADS

    question = Question.from_json(line)
    workload = WORKLOADS[question.workload]
    rival = import_rival(question.loader)
    setup = make_setup(question, workload, batches=1 if workload.parallel else 3)
    loader = rival(setup)
    samples = compare(workload, setup.dataset, loader)
    loader.close()
    faulthandler.cancel_dump_traceback_later()
    return json.dumps({"compared": samples})


def _prepare(line: str, uncached: list[str]) -> str:
    """Import the loader; return the modules that were compiled for it as a line."""
    from benches.harness.record import Question
    from benches.loaders.catalog import import_rival

    import_rival(Question.from_json(line).loader)
    return json.dumps({"uncached": list(uncached)})


def _serve(uncached: list[str]) -> None:
    """Answer line by line, on what was standard output; what packages print goes to the errors."""
    replies = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    for line in sys.stdin:
        task, _, question = line.strip().partition(" ")
        try:
            if task == "prepare":
                reply = _prepare(question, uncached)
            elif task == "compare":
                reply = _compare(question)
            else:
                reply = _answer(question, uncached)
        except Exception:  # noqa: BLE001  # whatever a rival raises is its answer
            reply = json.dumps({"error": traceback.format_exc()[-4000:]})
        if task == "measure":
            uncached.clear()
        print(reply, file=replies)


if __name__ == "__main__":
    main()
