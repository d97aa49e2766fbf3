"""A fair race of loaders: the same samples, in rounds, in turn, each for the same time.

In each round a loader starts afresh and goes on for a given time.  The rate is counted from its
first batch on.
"""

from __future__ import annotations

import gc
import signal
import time
from contextlib import closing
from functools import partial
from itertools import chain, islice, repeat
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from threadloader import _torch
from threadloader._batch.numpy_collate import numpy_collate
from threadloader.loader import ThreadLoader

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator, Sequence


ROUNDS = 3
# Yields batches of a dataset with an endless sampler; is closed at the end.
Batches: TypeAlias = "Callable[[Any, Endless], Generator[Any]]"


class Round(NamedTuple):
    """One loader's measurements in one round."""

    rate: float  # samples a second, after the first batch
    first: float  # seconds to the first batch, start-up included


class Endless:
    """A sampler: the indices of the first samples, over and over."""

    def __init__(self, samples: int) -> None:
        self.samples = samples

    def __iter__(self) -> Iterator[int]:
        return chain.from_iterable(repeat(range(self.samples)))


def contenders(
    workers: Sequence[int],
    threads: Sequence[int],
    chosen: list[tuple[int, int]],
    **options: Any,
) -> dict[str, Batches]:
    """Return a bare loop, torch's DataLoader if it is installed, and `ThreadLoader`, by names.

    Args:
        workers: Numbers of torch's processes; 0 loads in the calling thread.
        threads: Numbers of threads; the default comes besides, as the last one.
        chosen: Gets how many threads the default has at the end of each round, and runs at once.
        options: ``batch_size`` and ``collate_fn``.
    """
    found: dict[str, Batches] = {"bare loop": partial(_by_loop, **options)}
    for number in sorted({*workers}) if _torch.AVAILABLE else ():
        name = f"torch DataLoader, {number} worker{'s' * (number != 1)}"
        found[name] = partial(_by_torch, **options, num_workers=number)
    for number in sorted({*threads}):
        name = f"ThreadLoader, {number} thread{'s' * (number != 1)}"
        found[name] = partial(_by_threads, [], **options, threads=number)
    return {**found, "ThreadLoader, its default": partial(_by_threads, chosen, **options)}


def _by_loop(dataset: Any, sampler: Endless, *, batch_size: int, collate_fn: Any) -> Generator[Any]:
    collate_fn = collate_fn or (_torch.default_collate if _torch.AVAILABLE else numpy_collate)
    indices = iter(sampler)
    while True:
        yield collate_fn([dataset[index] for index in islice(indices, batch_size)])


def _by_torch(dataset: Any, sampler: Endless, **options: Any) -> Generator[Any]:
    quiet = _ignore_interrupts
    yield from _torch.DataLoader(dataset, sampler=sampler, worker_init_fn=quiet, **options)


def _by_threads(
    chosen: list[tuple[int, int]], dataset: Any, sampler: Endless, **options: Any
) -> Generator[Any]:
    with ThreadLoader(dataset, sampler=sampler, **options) as loader:
        try:
            yield from loader
        finally:
            statistics = loader.statistics()
            chosen.append((statistics.workers, statistics.running))


def _ignore_interrupts(_: int) -> None:
    """Let the calling process end torch's: a terminal sends Ctrl-C to all."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def race(
    loaders: dict[str, Batches],
    dataset: Any,
    samples: int,
    batch_size: int,
    seconds: float,
    tell: Callable[[str], None],
) -> tuple[dict[str, list[Round]], dict[str, Exception]]:
    """Run every loader in every round; a different one begins each time.

    Args:
        loaders: By their names.
        dataset: A map-style dataset.
        samples: The first ones of it are used.
        batch_size: Samples, at least 1.
        seconds: For each loader, over all rounds.
        tell: Called with what is done now.

    Returns:
        The rounds of each loader, and the errors of torch's that failed, which are left out.
    """
    rounds: dict[str, list[Round]] = {name: [] for name in loaders}
    failed = {}
    for number in range(ROUNDS):
        names = [*rounds]
        for name in names[number:] + names[:number]:
            tell(f"round {number + 1} of {ROUNDS}: {name}")
            gc.collect()  # the loader before this one is gone, and so are its threads or processes
            batches = loaders[name](dataset, Endless(samples))
            try:
                rounds[name].append(_timed(batches, batch_size, seconds / ROUNDS))
            except Exception as error:
                if not name.startswith("torch"):
                    raise
                failed[name] = error
                del rounds[name]
    return rounds, failed


def _timed(batches: Generator[Any], batch_size: int, seconds: float) -> Round:
    """Load for some seconds, and at least two batches."""
    arrivals: list[float] = []
    start = time.perf_counter()
    with closing(batches):
        for batch in batches:
            arrivals.append(time.perf_counter())
            del batch
            if len(arrivals) > 1 and arrivals[-1] - arrivals[0] >= seconds:
                break
    rate = batch_size * (len(arrivals) - 1) / (arrivals[-1] - arrivals[0])
    return Round(rate, arrivals[0] - start)
