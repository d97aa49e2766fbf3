"""The thread pool one writes by hand: a future for each batch, a few ahead.

The pool is kept between epochs and two batches per thread are in flight, which is
what torch's DataLoader prefetches per worker.
"""

from __future__ import annotations

from collections import deque
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

from benches.loaders.catalog import Loader, Setup
from benches.loaders.stacking import load_batch

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["Rival"]


class Rival(Loader):
    """Load whole batches in a pool's threads, in order."""

    def __init__(self, setup: Setup) -> None:
        self._setup = setup
        self._pool = ThreadPoolExecutor(setup.workers)

    def __iter__(self) -> Iterator[Any]:
        """Yield one epoch."""
        setup = self._setup
        pending: deque[Future[Any]] = deque()
        for indices in setup.batches():
            pending.append(self._pool.submit(load_batch, setup, indices))
            if len(pending) >= 2 * setup.workers:
                yield pending.popleft().result()
        while pending:
            yield pending.popleft().result()

    def close(self) -> None:
        """Stop the threads."""
        self._pool.shutdown(cancel_futures=True)
