"""A clock that a test drives: the loader reads it, and only the test's own code lets it go on."""

from __future__ import annotations

import importlib
import sys

import pytest

import threadloader


class DrivenClock:
    """Seconds that pass only where a test says so.

    It stands for the time and for all that is counted of processors.  So a loader without threads
    counts what the test lets pass, and nothing else.
    """

    def __init__(self) -> None:
        self.now = 1000.0
        self.cpu = 0.0

    def idle(self, seconds: float) -> None:
        """Let time pass in which nothing is computed."""
        self.now += seconds

    def compute(self, seconds: float) -> None:
        """Let time pass in which the calling thread computes."""
        self.now += seconds
        self.cpu += seconds


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> DrivenClock:
    """Return a clock that the package reads from now on."""
    for data in (range(2), iter(range(2))):  # which imports what a loader needs
        loader = threadloader.ThreadLoader(data, threads=0)
        list(loader)
    importlib.import_module("threadloader._engine.copier")
    driven = DrivenClock()
    reads = {
        "perf_counter": lambda: driven.now,
        "thread_time": lambda: driven.cpu,
        "process_use": lambda: (driven.cpu, 0),
        "run_delay": lambda: 0.0,
    }
    for name, module in list(sys.modules.items()):
        if name.startswith("threadloader."):
            for function in reads.keys() & vars(module).keys():
                monkeypatch.setattr(module, function, reads[function])
    return driven
