"""Processes that are kept: one for each loader of an interpreter, which answers many questions.

Starting Python and importing torch takes seconds, so with hundreds of measurements a fresh process
for each takes most of the time. A process that waits for its next question does nothing.
"""

from __future__ import annotations

import json
import subprocess
import tempfile
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from benches.harness.fresh_process import ROOT, MeasurementError, ask, make_environment
from benches.harness.record import Answer
from benches.workloads.catalog import WORKLOADS

if TYPE_CHECKING:
    from collections.abc import Iterable

    from benches.harness.record import Question
    from benches.harness.rounds import Lane

__all__ = ["KeptProcesses"]

ENDED = "the process ended"


class KeptProcesses:
    """Asks the process of a loader, and starts it where there is none."""

    def __init__(self) -> None:
        self._processes: dict[tuple[str, str], _Process] = {}

    def prepare(self, lanes: Iterable[Lane], together: int) -> None:
        """Start processes, several at a time, and let each import its loader.

        Args:
            lanes: Whose loaders.
            together: Processes at a time.
        """
        keys = {(lane.python, lane.question.loader): lane.question for lane in lanes}
        new = [(key, question) for key, question in keys.items() if key not in self._processes]
        for start in range(0, len(new), together):
            group = new[start : start + together]
            for (python, loader), question in group:
                process = self._processes[python, loader] = _Process(python)
                process.send(f"prepare {question.to_json()}")
            for key, _ in group:
                if self._processes[key].receive().get("uncached"):
                    self._processes.pop(key).end()  # now they are cached: the next one loads them

    def ask(self, python: str, question: Question) -> Answer:
        """Measure in the loader's process, or in a fresh one where the workload wants that.

        Raises:
            MeasurementError: The measurement failed.
        """
        if WORKLOADS[question.workload].fresh:
            return ask(python, question)
        found = Answer(**self._say(python, question, "measure"))
        if found.uncached:  # now they are cached: what was compiled has been written, too
            self._end(python, question)
            found = Answer(**self._say(python, question, "measure"))
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
        self._processes.pop((python, question.loader)).end()


class _Process:
    """One of them."""

    def __init__(self, python: str) -> None:
        self._errors = tempfile.TemporaryFile("w+")  # noqa: SIM115  # as long as the process
        self._process = subprocess.Popen(
            [python, "-m", "benches.harness.child", "--serve"],
            cwd=ROOT,
            env=make_environment(),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
        )

    def say(self, line: str) -> dict[str, Any]:
        """Send a line and wait for the answer."""
        self.send(line)
        return self.receive()

    def send(self, line: str) -> None:
        """Send a line; where the process has ended, `receive` says so."""
        with suppress(OSError):
            print(line, file=self._process.stdin, flush=True)

    def receive(self) -> dict[str, Any]:
        """Wait for an answer; a process that hangs ends itself."""
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
