"""A worker: who makes samples and batches, of objects of its own; a thread, or the calling one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from threadloader._work.copies import collate_copy

if TYPE_CHECKING:
    from collections.abc import Callable

    from threadloader._fetch.dataset_copy import Copied
    from threadloader._fetch.fetcher import Fetches
    from threadloader._work.copies import Original
    from threadloader._work.counters import Counters

__all__ = ["Worker"]


def _nothing() -> None:
    """Adopt nothing: the calling thread is the one that called ``iter()``."""


class Worker:
    """The identity of a worker, and what it has of its own.

    Args:
        number: From 0.
        place: "worker 3", for notes on errors.
        counters: Its own; nobody else writes them.
        fetcher: Gives it samples of its own copy of the dataset.
        copied: From the user's objects to its copies.
        collate_fn: Its copy; None for the user's own function.
        adopt: Called before a job, in a thread that may be kept.

    Threads:
        all: its own thread.
    """

    __slots__ = (
        "_collate_fn",
        "_exchanged",
        "_exchanged_fn",
        "adopt",
        "copied",
        "counters",
        "fetcher",
        "number",
        "place",
    )

    def __init__(
        self,
        number: int,
        place: str,
        counters: Counters,
        fetcher: Fetches,
        copied: Copied | None = None,
        collate_fn: Any = None,
        adopt: Callable[[], None] = _nothing,
    ) -> None:
        self.number = number
        self.place = place
        self.counters = counters
        self.fetcher = fetcher
        self.copied = copied
        self.adopt = adopt
        self._collate_fn = collate_fn
        self._exchanged: Original | None = None
        self._exchanged_fn: Any = None

    def collate_fn(self, exchanged: Original | None) -> Any:
        """Return its copy of an epoch's collate function; None for the user's own.

        Args:
            exchanged: Has the function, if it is another one than when the worker began.
        """
        if exchanged is None:
            return self._collate_fn
        if exchanged is not self._exchanged:
            self._exchanged_fn = collate_copy(exchanged, self.fetcher.dataset)
            self._exchanged = exchanged
        return self._exchanged_fn
