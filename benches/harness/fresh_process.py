"""Ask an interpreter in a fresh process, and read the one line that it prints.

The process is started with bytecode caching on, whatever the shell says, and where it had
to compile a module the measurement is repeated; see `benches.harness.child` for why.
"""

from __future__ import annotations

import argparse
import functools
import json
import os
import shutil
import subprocess
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from benches.harness.child import HANG_S
from benches.harness.record import Answer, Question

__all__ = [
    "ROOT",
    "MeasurementError",
    "ask",
    "ask_module",
    "calibrate",
    "decoders",
    "describe",
    "find_python",
    "make_environment",
    "make_photos",
    "run_module",
]

ROOT = Path(__file__).resolve().parents[2]


class MeasurementError(RuntimeError):
    """A measured process failed; the message ends with what it said."""


def ask(python: str, question: Question) -> Answer:
    """Measure in a fresh process of ``python``.

    Raises:
        MeasurementError: The process failed.
    """
    found = _ask(python, question)
    if found.uncached:  # now they are cached: what was compiled has been written, too
        found = _ask(python, question)
    return found


def _ask(python: str, question: Question) -> Answer:
    question = replace(question, started=time.monotonic())
    return Answer.from_json(run_module(python, "benches.harness.child", question.to_json()))


def find_python(name: str) -> str:
    """Return the absolute path of an interpreter, given by its path or as a command.

    Raises:
        ArgumentTypeError: There is no such program.
    """
    found = shutil.which(name)
    if found is None:
        raise argparse.ArgumentTypeError(f"no interpreter at {name!r}, and no such command")
    # Not resolved: a virtual environment's interpreter is known by its link.
    return str(Path(found).absolute())


@functools.cache
def describe(python: str) -> dict[str, Any]:
    """Return what `benches.harness.machine.describe` says in ``python``."""
    described: dict[str, Any] = json.loads(run_module(python, "benches.harness.machine"))
    return described


def ask_module(python: str, module: str, question: dict[str, Any], seconds: float) -> Any:
    """Run a module of benches with a question; return its answer, both plain values.

    It answers with the names of modules that it had to compile, where it had to: then it is asked
    again.

    Args:
        python: The interpreter.
        module: Answers ``--child QUESTION``.
        question: Its arguments.
        seconds: That it takes at the most.

    Raises:
        MeasurementError: It failed, or compiled modules twice.
    """
    line = json.dumps(question)
    told = json.loads(run_module(python, module, "--child", line, seconds=seconds))
    if "uncached" in told:  # now they are cached
        told = json.loads(run_module(python, module, "--child", line, seconds=seconds))
    if "uncached" in told:
        raise MeasurementError(f"{python} compiles again and again: {told['uncached']}")
    return told


def calibrate(python: str) -> int:
    """Return the iterations of the pure-Python workload for ``python``."""
    return int(run_module(python, "benches.workloads.spin"))


def decoders(python: str) -> list[str]:
    """Return the image decoders that ``python`` has, the fastest first."""
    names: list[str] = json.loads(run_module(python, "benches.workloads.decoded"))
    return names


def make_photos(pythons: list[str]) -> None:
    """Make the photo files, with the first of ``pythons`` that can.

    Raises:
        MeasurementError: They are missing, and none can make them.
    """
    failures = []
    for python in pythons:
        try:
            run_module(python, "benches.workloads.photo_files")
        except MeasurementError as error:
            failures.append(str(error))
        else:
            return
    raise MeasurementError("\n".join(failures))


def run_module(python: str, module: str, *arguments: str, seconds: float = HANG_S) -> str:
    """Run a module of benches; return the last line that it prints.

    Args:
        python: The interpreter.
        module: To be run.
        arguments: Of its command line.
        seconds: That it takes at the most.

    Raises:
        MeasurementError: It failed, or ran far beyond that.
    """
    command = [python, "-m", module, *arguments]
    try:
        done = subprocess.run(
            command,
            cwd=ROOT,
            env=make_environment(),
            capture_output=True,
            text=True,
            timeout=seconds + 60,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise MeasurementError(f"{' '.join(command)} did not end") from error
    lines = done.stdout.splitlines()
    if done.returncode or not lines:
        raise MeasurementError(
            f"{' '.join(command)} ended with {done.returncode}:\n{done.stderr[-4000:]}"
        )
    return lines[-1]


def make_environment() -> dict[str, str]:
    """Return this process' environment without what changes how Python runs.

    Bytecode is cached, the GIL is as the build has it by default, and benches are found
    in the working folder.
    """
    changing = ("PYTHONDONTWRITEBYTECODE", "PYTHON_GIL", "PYTHONSAFEPATH")
    return {name: value for name, value in os.environ.items() if name not in changing}
