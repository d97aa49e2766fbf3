"""Loaders whose threads are slower than the thread that calls them, on any machine."""

# ruff: noqa: SLF001  # how an epoch works has no public name

from __future__ import annotations

import math
import threading
import time
from typing import TYPE_CHECKING, Any

from support.patience import PATIENCE
from threadloader._threads.inline_choice import InlineChoice

if TYPE_CHECKING:
    import pytest

    from threadloader import ThreadLoader


def let_no_batch_be_cheap(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let no batch count as cheap, nor an epoch as short, but the first one begins here."""
    for module in ("_epoch.inline", "_epoch.in_flight"):
        monkeypatch.setattr(f"threadloader.{module}.INLINE_SECONDS", 0.0)
    for module in ("_epoch.inline", "_order.tickets"):
        monkeypatch.setattr(f"threadloader.{module}.START_SECONDS", 0.0)
    monkeypatch.setattr("threadloader._threads.concurrency.SHORT", 0.0)


def let_threads_be_far_slower(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let threads be found slower by any wait, also on a busy machine, and not be tried again."""
    monkeypatch.setattr("threadloader._threads.inline_choice.SOON_SECONDS", 0.0)
    # The first samples, which the calling thread makes, may take as long there as in threads.
    monkeypatch.setattr("threadloader._threads.inline_choice.FAR_SLOWER", 0.0)
    monkeypatch.setattr("threadloader._threads.inline_choice.MORE_CPU", 0.0)
    monkeypatch.setattr("threadloader._threads.inline_choice.FASTER", PATIENCE)
    monkeypatch.setattr("threadloader._threads.inline_choice.LONGEST_TRY", PATIENCE)
    monkeypatch.setattr("threadloader._threads.inline_choice.CHANGED", math.inf)
    monkeypatch.setattr("threadloader._threads.inline_choice.FIRST_PAUSE", PATIENCE)


def takes_cpu(loader: ThreadLoader[Any]) -> None:
    """Let all time that threads take count as CPU time."""
    loader._concurrency.inline_choice = InlineChoice(cpu=time.perf_counter)


class DearInThreads:
    """Samples that take far longer in a loader's threads; each tells whether one made it."""

    def __init__(self, length: int = 4096) -> None:
        self.length = length

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> tuple[int, bool]:
        in_thread = threading.current_thread().name.startswith("tl")
        end = time.thread_time() + 1e-4
        while time.thread_time() < end:  # so that most of the time is that of samples
            pass
        if in_thread:
            time.sleep(0.002)
        return index, in_thread
