"""Many threads load the same samples at once, in several orders, and all must be as expected.

A race that no place of the user's code shows, in a C library say, can only be met by chance.
"""

from __future__ import annotations

import random
import sys
from contextlib import contextmanager
from threading import Barrier, BrokenBarrierError
from typing import TYPE_CHECKING, Any

from threadloader._check.interleaving import WrongSample
from threadloader._check.loading import WorkerThread

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from threadloader._check.limit import Limit
    from threadloader._check.loading import LoadedSample, Loading

__all__ = ["hammer"]

SWITCH_SECONDS = 1e-5  # between two turns of the GIL


def hammer(
    loading: Loading, expected: Mapping[Any, LoadedSample], threads: int, limit: Limit
) -> list[WrongSample]:
    """Load all samples in many threads at once.

    Args:
        loading: Loads the samples.
        expected: The samples as one thread loads them.
        threads: How many.
        limit: Of the time.

    Returns:
        The samples that came out wrong, at most one a thread.

    Raises:
        HangError: They did not end.
    """
    workers = [WorkerThread(f"tlcheck-worker-{number}") for number in range(threads)]
    barrier = Barrier(threads)
    ended = False
    # Copied before any thread runs, as `iter` does.
    passes_of_all = [
        [(loading.copy(), order) for order in orders] for orders in _orders(loading.keys, threads)
    ]
    try:
        with _short_turns():
            found = _run(workers, loading, expected, barrier, passes_of_all, limit)
        ended = True
    finally:
        barrier.abort()
        for worker in workers:
            worker.stop()
            if ended:
                worker.join()
    return [mixture for mixture in found if mixture is not None]


def _run(
    workers: Sequence[WorkerThread],
    loading: Loading,
    expected: Mapping[Any, LoadedSample],
    barrier: Barrier,
    passes_of_all: Sequence[Sequence[tuple[Any, Sequence[Any]]]],
    limit: Limit,
) -> list[WrongSample | None]:
    """Return what each thread found, when all have ended.

    No loop of this is in the block that takes the interval back: see python/cpython#108214.
    """
    futures = [
        worker.start(_load_all, loading, expected, barrier, passes, limit)
        for worker, passes in zip(workers, passes_of_all, strict=True)
    ]
    return [limit.result(future) for future in futures]


def _orders(keys: Sequence[Any], threads: int) -> Iterator[list[list[Any]]]:
    """Yield for each thread the orders in which it loads: all the same, shifted, by chance."""
    for thread in range(threads):
        shifted = [keys[(place + thread) % len(keys)] for place in range(len(keys))]
        chance = random.Random(thread)  # noqa: S311  # not for secrets
        shuffled = chance.sample(list(keys), len(keys))
        yield [list(keys), shifted, shifted[::-1] if thread % 2 else shifted, shuffled]


def _load_all(
    loading: Loading,
    expected: Mapping[Any, LoadedSample],
    barrier: Barrier,
    passes: Sequence[tuple[Any, Sequence[Any]]],
    limit: Limit,
) -> WrongSample | None:
    wrong = None
    try:
        for twin, order in passes:
            for key in order:
                if limit.is_over():  # for all threads, by the next barrier
                    barrier.abort()
                barrier.wait()
                outcome = loading.load(twin, key)
                text = outcome.difference(expected[key])
                if text is not None and wrong is None:
                    text = f"index {key!r} came out wrong ({text})"
                    wrong = WrongSample(key, (), text, outcome.line, None, "")
    except BrokenBarrierError:  # time is up, or another thread has ended, by an error
        return wrong
    except BaseException:  # SystemExit, say
        barrier.abort()
        raise
    return wrong


@contextmanager
def _short_turns() -> Iterator[None]:
    before = sys.getswitchinterval()
    sys.setswitchinterval(SWITCH_SECONDS)
    try:
        yield
    finally:
        sys.setswitchinterval(before)
