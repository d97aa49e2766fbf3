"""A process that gets ready, reads once it is told to, and may be killed meanwhile."""

from __future__ import annotations

import subprocess
import sys

from support.patience import PATIENCE

__all__ = ["ReaderProcess"]


class ReaderProcess:
    """A process that is about to read.

    Args:
        script: Prints "ready", and reads once it has a line of input.
        values: Its arguments.
    """

    def __init__(self, script: str, *values: object) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", script, *map(str, values)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def begin(self) -> None:
        """Let it read."""
        assert self.process.stdout is not None
        assert self.process.stdout.readline() == "ready\n"
        assert self.process.stdin is not None
        self.process.stdin.write("go\n")
        self.process.stdin.flush()

    def end(self) -> int:
        """Return how it ended."""
        self.process.communicate(timeout=PATIENCE)
        return self.process.returncode
