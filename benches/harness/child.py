"""The entry of a measured process: ``python -m benches.harness.child QUESTION``.

It watches from its first line on for modules that are compiled in this process
instead of being loaded from their ``.pyc``: on CPython 3.13t such code keeps
reference-counted constants, and threads that share it slow each other down.
"""

from __future__ import annotations

import faulthandler
import sys
from dataclasses import replace
from importlib.machinery import SourceFileLoader
from typing import Any

__all__ = ["HANG_S", "main"]

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
    """Answer the question in ``sys.argv[1]`` on standard output."""
    faulthandler.dump_traceback_later(HANG_S, exit=True)
    uncached = watch_compilation()
    from benches.harness.machine import describe
    from benches.harness.measurement import answer
    from benches.harness.record import Question

    found = answer(Question.from_json(sys.argv[1]))
    print(replace(found, uncached=uncached, machine=describe()).to_json())


if __name__ == "__main__":
    main()
