"""Ask an interpreter: a module of benches in a process of its own, or one that answers for long.

Starting Python and importing torch takes seconds, so with hundreds of measurements a fresh process
for each takes most of the time: each loader of an interpreter has one that is kept.  A process that
waits for its next question does nothing.

Processes are started with bytecode caching on, whatever the shell says, and where one had to
compile a module the measurement is repeated; see `benches.harness.child` for why.
"""

from __future__ import annotations

import argparse
import functools
import json
import os
import shutil
import subprocess
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benches.harness.child import HANG_S
from benches.harness.record import Answer
from benches.workloads.catalog import WORKLOADS

if TYPE_CHECKING:
    from benches.harness.record import Question

__all__ = [
    "ROOT",
    "KeptProcesses",
    "MeasurementError",
    "ask_module",
    "calibrate",
    "describe",
    "find_python",
    "labelled_python",
    "make_photos",
    "run_module",
]

ROOT = Path(__file__).resolve().parents[2]
ENDED = "the process ended"


class MeasurementError(RuntimeError):
    """A measured process failed; the message ends with what it said."""


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


def labelled_python(argument: str) -> tuple[str, str]:
    """Split ``label=python``."""
    label, separator, python = argument.partition("=")
    if not (label and separator and python):
        raise argparse.ArgumentTypeError(f"{argument!r} is not label=python")
    return label, find_python(python)


@functools.cache
def describe(python: str) -> dict[str, Any]:
    """Return what `benches.harness.machine.describe` says in ``python``."""
    described: dict[str, Any] = json.loads(run_module(python, "benches.harness.machine"))
    return described


def calibrate(python: str) -> int:
    """Return the iterations of the pure-Python workload for ``python``."""
    return int(run_module(python, "benches.workloads.spin"))


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
    told: dict[str, Any] = {}
    for _ in range(2):
        line = run_module(python, module, "--child", json.dumps(question), seconds=seconds)
        told = json.loads(line)
        if "uncached" not in told:
            return told
    raise MeasurementError(f"{python} compiles again and again: {told['uncached']}")


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
            env=_environment(),
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


def _environment() -> dict[str, str]:
    """Return this process' environment without what changes how Python runs.

    Bytecode is cached, the GIL is as the build has it by default, and benches are found
    in the working folder.
    """
    changing = ("PYTHONDONTWRITEBYTECODE", "PYTHON_GIL", "PYTHONSAFEPATH")
    return {name: value for name, value in os.environ.items() if name not in changing}


class KeptProcesses:
    """Asks the process of a loader, and starts it where there is none."""

    def __init__(self) -> None:
        self._processes: dict[tuple[str, str], _Process] = {}

    def ask(self, python: str, question: Question) -> Answer:
        """Measure in the loader's process, or in a fresh one where the workload wants that.

        Raises:
            MeasurementError: The measurement failed.
        """
        fresh = WORKLOADS[question.workload].fresh
        if fresh:
            self._end(python, question)
        found = Answer(**self._say(python, question, "measure"))
        if found.uncached:  # now they are cached: what was compiled has been written, too
            self._end(python, question)
            found = Answer(**self._say(python, question, "measure"))
        if fresh:
            self._end(python, question)
        return found

    def compare(self, python: str, question: Question) -> int:
        """Compare a short epoch with the dataset; return the number of samples.

        Raises:
            MeasurementError: The loader failed, or delivered other samples.
        """
        return int(self._say(python, question, "compare")["compared"])

    def close(self) -> None:
        """End all processes."""
        for process in self._processes.values():
            process.end()
        self._processes.clear()

    def _say(self, python: str, question: Question, task: str) -> dict[str, Any]:
        process = self._processes.get((python, question.loader))
        if process is None:
            process = self._processes[python, question.loader] = _Process(python)
        answer = process.say(f"{task} {question.to_json()}")
        if "error" in answer:
            if answer["error"].startswith(ENDED):
                self._end(python, question)
            raise MeasurementError(answer["error"])
        return answer

    def _end(self, python: str, question: Question) -> None:
        process = self._processes.pop((python, question.loader), None)
        if process is not None:
            process.end()


class _Process:
    """One of them."""

    def __init__(self, python: str) -> None:
        self._errors = tempfile.TemporaryFile("w+")  # noqa: SIM115  # as long as the process
        self._process = subprocess.Popen(
            [python, "-m", "benches.harness.child"],
            cwd=ROOT,
            env=_environment(),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
        )

    def say(self, line: str) -> dict[str, Any]:
        """Send a line, and wait for the answer; a process that hangs ends itself."""
        with suppress(OSError):  # it has ended: there is no answer
            print(line, file=self._process.stdin, flush=True)
        reply = self._process.stdout.readline() if self._process.stdout else ""
        if not reply:
            self._errors.seek(0)
            return {"error": f"{ENDED}:\n{self._errors.read()[-4000:]}"}
        found: dict[str, Any] = json.loads(reply)
        return found

    def end(self) -> None:
        """Close its input, and end it if that is not enough."""
        if self._process.stdin is not None:
            with suppress(OSError):
                self._process.stdin.close()
        try:
            self._process.wait(timeout=20)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        if self._process.stdout is not None:
            self._process.stdout.close()
        self._errors.close()
