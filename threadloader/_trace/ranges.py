"""Stages as ranges of a profiler: each is pushed as it begins, and popped as it ends."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

    from threadloader._trace.tracers import BatchRows

__all__ = ["Ranges"]


class Ranges:
    """Tells a profiler of stages; a `Tracer`.

    Args:
        push: Begins a range of this name in the calling thread.
        pop: Ends the thread's last.

    Threads:
        all: shared.
    """

    def __init__(self, push: Callable[[str], Any], pop: Callable[[], Any]) -> None:
        self._push = push
        self._pop = pop

    def begin(self, stage: str, rows: BatchRows | None = None) -> None:  # noqa: ARG002
        """Begin a range; see `Tracer`.

        Its name says nothing of the rows, since profilers add up the ranges of one name.
        """
        self._push(f"threadloader: {stage}")

    def end(self) -> None:
        """End a range; see `Tracer`."""
        self._pop()

    def broken_off(self) -> None:
        """Do nothing: a profiler ends what is left; see `Tracer`."""

    def taken(self, epoch: int, batch: int, running: int, planned: int, done: int) -> None:
        """Do nothing; see `Tracer`."""
