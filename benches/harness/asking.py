"""Call functions of benches in processes of other interpreters.

Starting Python and importing torch takes seconds, so with hundreds of measurements a fresh process
for each takes most of the time: each loader of an interpreter has one that is kept.  A process that
waits for its next question does nothing.

Processes are started with bytecode caching on, whatever the shell says, and where one had to
compile a module, a fresh one is asked again; see `benches.harness.compiling` for why.
"""

from __future__ import annotations

import argparse
import functools
import json
import os
import shutil
import subprocess
import sys
import tempfile
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benches.harness.record import Answer
from benches.workloads.catalog import WORKLOADS

if TYPE_CHECKING:
    from benches.harness.record import Question

__all__ = [
    "ROOT",
    "KeptProcesses",
    "MeasurementError",
    "calibrate",
    "call",
    "describe",
    "find_python",
    "labelled_python",
    "make_photos",
]

ROOT = Path(__file__).resolve().parents[2]
HANG_S = 240.0  # a measurement that takes longer hangs: its process prints all stacks, and ends


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
    described: dict[str, Any] = call(python, "benches.harness.machine.describe")
    return described


def calibrate(python: str) -> int:
    """Return the iterations of the pure-Python workload for ``python``."""
    return int(call(python, "benches.workloads.spin.calibrate"))


def make_photos(pythons: list[str]) -> None:
    """Make the photo files, with the first of ``pythons`` that can.

    Raises:
        MeasurementError: They are missing, and none can make them.
    """
    failures = []
    for python in pythons:
        try:
            call(python, "benches.workloads.photo_files.count_photo_files")
        except MeasurementError as error:
            failures.append(str(error))
        else:
            return
    raise MeasurementError("\n".join(failures))


def call(python: str, function: str, *, limit: float = HANG_S, **arguments: Any) -> Any:
    """Call a function of benches in a fresh process; return its answer.

    Args:
        python: The interpreter.
        function: Its name, with its module's.
        limit: Seconds that it takes at the most.
        arguments: Plain values, as the answer is.

    Raises:
        MeasurementError: It failed.
    """
    kept = KeptProcesses()
    try:
        return kept.call((python, function), function, limit, arguments)
    finally:
        kept.close()


class KeptProcesses:
    """Asks the process of a loader, and starts it where there is none."""

    def __init__(self) -> None:
        self._processes: dict[tuple[str, str], _Process] = {}

    def ask(self, python: str, question: Question) -> Answer:
        """Measure in the loader's process, or in a fresh one where the workload wants that.

        Raises:
            MeasurementError: The measurement failed.
        """
        key, workload = (python, question.loader), WORKLOADS[question.workload]
        if workload.kind == "import":
            found = call(python, "benches.harness.importing.measure_import")
        elif workload.fresh:
            found = call(python, "benches.harness.measurement.answer", question=asdict(question))
        else:
            arguments = {"question": asdict(question)}
            found = self.call(key, "benches.harness.measurement.answer", HANG_S, arguments)
        return Answer(**found)

    def compare(self, python: str, question: Question) -> int:
        """Compare a short epoch with the dataset; return the number of samples.

        Raises:
            MeasurementError: The loader failed, or delivered other samples.
        """
        arguments, key = {"question": asdict(question)}, (python, question.loader)
        return int(self.call(key, "benches.harness.measurement.compared", HANG_S, arguments))

    def call(
        self, key: tuple[str, str], function: str, limit: float, arguments: dict[str, Any]
    ) -> Any:
        """Call a function in the process of a key, which begins with its interpreter.

        Raises:
            MeasurementError: It failed.
        """
        answer: dict[str, Any] = {}
        for _ in range(2):
            if key not in self._processes:
                self._processes[key] = _Process(key[0])
            answer = self._processes[key].call(function, limit, arguments)
            if "ended" in answer or answer["compiled"]:
                self._processes.pop(key).end()
            if "error" in answer:
                raise MeasurementError(answer["error"])
            if not answer["compiled"]:  # what was compiled was written: the next one loads it
                return answer["returned"]
        print(f"! compiled again and again: {answer['compiled']}", file=sys.stderr)
        return answer["returned"]

    def close(self) -> None:
        """End all processes."""
        for process in self._processes.values():
            process.end()
        self._processes.clear()


class _Process:
    """One of them."""

    def __init__(self, python: str) -> None:
        # Bytecode is cached, the GIL is as the build has it by default, and benches are found.
        changing = ("PYTHONDONTWRITEBYTECODE", "PYTHON_GIL", "PYTHONSAFEPATH")
        self._errors = tempfile.TemporaryFile("w+")  # noqa: SIM115  # as long as the process
        self._process = subprocess.Popen(
            [python, "-m", "benches.harness.child"],
            cwd=ROOT,
            env={name: value for name, value in os.environ.items() if name not in changing},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
        )

    def call(self, function: str, limit: float, arguments: dict[str, Any]) -> dict[str, Any]:
        """Return what a function returned or its error, and the modules that were compiled."""
        asked = {"function": function, "limit": limit, "arguments": arguments}
        with suppress(OSError):  # it has ended: there is no answer
            print(json.dumps(asked), file=self._process.stdin, flush=True)
        reply = self._process.stdout.readline() if self._process.stdout else ""
        if not reply:
            self._process.wait()
            self._errors.seek(0)
            return {"ended": True, "error": f"the process ended:\n{self._errors.read()[-4000:]}"}
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
