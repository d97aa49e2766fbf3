"""How an epoch ends before its end: closed, dropped, or left behind by a fork."""

from __future__ import annotations

from typing import TYPE_CHECKING

from threadloader._lifetime.process import end_thread_at_exit
from threadloader.errors import ClosedError

if TYPE_CHECKING:
    from collections.abc import Callable

    from threadloader._work.progress import Progress

__all__ = ["abandon", "closed", "forked"]

_FORKED = (
    "this iterator was made before a fork and has no threads here; iter(loader) starts a new one"
)
_CLOSED = (
    "this iterator was closed, by close() or, where one iterator at a time reads an iterable, by a "
    "later iter(); iter(loader) starts a new one"
)


def closed() -> ClosedError:
    """Return the error for who asks a closed iterator; a thread at exit ends instead."""
    end_thread_at_exit()
    return ClosedError(_CLOSED)


def forked() -> ClosedError:
    """Return the error for who asks an iterator of the parent's."""
    return ClosedError(_FORKED)


def abandon(progress: Progress, signals: list[Callable[[], None]]) -> None:
    """End an epoch whose iterator was dropped; waits for nobody."""
    progress.cancel()
    for signal in signals:
        signal()
