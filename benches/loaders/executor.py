"""The thread pool one writes by hand: a future for each batch, a few ahead.

The pool is kept between epochs and two batches per thread are in flight, which is
what torch's DataLoader prefetches per worker.
"""

from __future__ import annotations

from collections import deque
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

from benches.loaders.bare_loop import load_batch

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from benches.harness.record import Output
    from benches.workloads.catalog import Dataset

__all__ = ["Rival"]


class Rival:
    """Load whole batches in a pool's threads, in order."""

    def __init__(
        self, dataset: Dataset, batch_size: int, workers: int, output: Output | None
    ) -> None:
        self._dataset = dataset
        self._batch_size = batch_size
        self._ahead = 2 * workers
        self._pool = ThreadPoolExecutor(workers)

    def __iter__(self) -> Iterator[tuple[NDArray[Any], ...]]:
        """Yield one epoch."""
        pending: deque[Future[tuple[NDArray[Any], ...]]] = deque()
        for start in range(0, len(self._dataset), self._batch_size):
            indices = range(start, start + self._batch_size)
            pending.append(self._pool.submit(load_batch, self._dataset, indices))
            if len(pending) >= self._ahead:
                yield pending.popleft().result()
        while pending:
            yield pending.popleft().result()

    def close(self) -> None:
        """Stop the threads."""
        self._pool.shutdown(cancel_futures=True)

    def counters(self) -> dict[str, float]:
        """Return none."""
        return {}
