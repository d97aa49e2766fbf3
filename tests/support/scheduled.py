"""Threads of a pool under a controlled scheduler, which switches between them where it likes."""

from __future__ import annotations

import queue
from collections.abc import Callable
from typing import Any

import pytest

from support.patience import PATIENCE
from threadloader._threads import pool
from threadloader._threads.starting import start_each

it = pytest.importorskip("interleave_test", reason="needs Python 3.12")

__all__ = ["control_pool", "explore", "it"]


class Thread(it.Thread):
    """Forgets its arguments when it ends, as `threading.Thread` does."""

    lost = False  # as of `Joinable`

    def run(self) -> None:
        try:
            super().run()
        finally:
            del self._target, self._args, self._kwargs


def control_pool(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the scheduler have the threads of pools, and what they wait for."""
    monkeypatch.setattr(pool, "Lock", it.Lock)
    monkeypatch.setattr(pool, "Joinable", Thread)
    monkeypatch.setattr(pool, "start_all", start_each)
    # Looked up within the run, where it is the one written in Python.
    monkeypatch.setattr(pool, "SimpleQueue", lambda: queue.SimpleQueue())  # noqa: PLW0108


def explore(scenario: Callable[[], None], iterations: int, **options: Any) -> None:
    """Run a scenario under many schedules, of two kinds."""
    for strategy in ("random", "pct"):
        it.explore(
            scenario,
            timeout=PATIENCE,
            iterations=iterations,
            strategy=strategy,
            seed=0,
            **options,
        )
