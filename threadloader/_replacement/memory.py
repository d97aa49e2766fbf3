"""The most memory that this process and its children had together.

On Linux that is the sum of their PSS, the "proportional set size": a page that several processes
share counts once.  It is read when batches are delivered, once a second at the most, so a short
peak may be missed.  Elsewhere it is the largest RSS of this process, as the system counted it.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from time import perf_counter

__all__ = ["MemoryMeter"]

BETWEEN = 1.0  # seconds
SHARE = 0.01  # of the time, at the most: to read the PSS of a large process takes milliseconds


class MemoryMeter:
    """Keeps the largest of the figures that were read.

    Threads:
        all: the consumer's.
    """

    def __init__(self) -> None:
        self._pss = 0
        self._due = 0.0

    def sample(self) -> None:
        """Read the memory, if the last figure is old enough."""
        began = perf_counter()
        if began < self._due:
            return
        self._pss = max(self._pss, _tree_pss() or 0)
        ended = perf_counter()
        self._due = ended + max(BETWEEN, (ended - began) / SHARE)

    def peak(self) -> tuple[int | None, str]:
        """Return the largest figure, in bytes, or None, and what it is a figure of."""
        self._due = 0.0
        self.sample()
        if self._pss:
            return self._pss, "PSS of all processes"
        return _largest_rss(), "RSS of the main process"


def _tree_pss() -> int | None:
    """Return the PSS of this process and its descendants, in bytes; None where it is unknown."""
    total = 0
    waiting = [os.getpid()]
    while waiting:
        process = Path(f"/proc/{waiting.pop()}")
        try:
            for line in (process / "smaps_rollup").read_text(encoding="ascii").splitlines():
                if line.startswith("Pss:"):
                    total += int(line.split()[1]) * 1024  # the file has KiB
            for children in process.glob("task/*/children"):
                waiting += map(int, children.read_text(encoding="ascii").split())
        except (OSError, ValueError):  # it has ended, or is another user's
            continue
    return total or None


def _largest_rss() -> int | None:
    try:
        import resource  # noqa: PLC0415  # Windows has none
    except ImportError:
        return None
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return most if sys.platform == "darwin" else most * 1024  # bytes there, KiB elsewhere
