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
from threadloader._loader.loader import ThreadLoader

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Generator, Iterator


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


def _by_loop(dataset: Any, sampler: Endless, *, batch_size: int, collate_fn: Any) -> Generator[Any]:
    collate_fn = collate_fn or (_torch.default_collate if _torch.AVAILABLE else numpy_collate)
    indices = iter(sampler)
    while True:
        yield collate_fn([dataset[index] for index in islice(indices, batch_size)])


def _by_torch(dataset: Any, sampler: Endless, **options: Any) -> Generator[Any]:
    loader = _torch.DataLoader(dataset, sampler=sampler, worker_init_fn=_quiet, **options)
    # By forkserver a worker imports for seconds before `_quiet`: it has the mask of its start.
    posix = hasattr(signal, "pthread_sigmask")
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT}) if posix else None
    try:
        batches = iter(loader)
    finally:
        if before is not None:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
    yield from batches


def _by_threads(
    chosen: list[tuple[int, int]], dataset: Any, sampler: Endless, **options: Any
) -> Generator[Any]:
    with ThreadLoader(dataset, sampler=sampler, **options) as loader:
        try:
            yield from loader
        finally:
            statistics = loader.statistics()
            chosen.append((statistics.workers, statistics.running))


def _quiet(_: int) -> None:
    """Let the calling process end torch's: a terminal sends Ctrl-C to all."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def race(
    dataset: Any,
    samples: int,
    arguments: argparse.Namespace,
    collate_fn: Callable[[Any], Any] | None,
    tell: Callable[[str], None],
) -> tuple[dict[str, list[Round]], dict[str, Exception], list[tuple[int, int]]]:
    """Run a bare loop, torch's DataLoader and `ThreadLoader` in every round, in turn.

    Args:
        dataset: A map-style dataset.
        samples: The first ones of it are used.
        arguments: ``batch_size`` and ``seconds``, for each loader over all rounds; and the numbers
            of ``workers`` and of ``threads``, to which the default comes as the last one.
        collate_fn: The user's; None for none.
        tell: Called with what is done now.

    Returns:
        The rounds of each loader; the errors of torch's that failed, which are left out; and how
        many threads the default had at the end of each round, and ran at once.
    """
    chosen: list[tuple[int, int]] = []
    size, seconds = arguments.batch_size, arguments.seconds / ROUNDS
    options = {"batch_size": size, "collate_fn": collate_fn}
    loaders: dict[str, Batches] = {"bare loop": partial(_by_loop, **options)}
    for number in sorted({*arguments.workers}) if _torch.AVAILABLE else ():
        name = f"torch DataLoader, {number} worker{'s' * (number != 1)}"
        loaders[name] = partial(_by_torch, **options, num_workers=number)
    for number in sorted({*arguments.threads}):
        name = f"ThreadLoader, {number} thread{'s' * (number != 1)}"
        loaders[name] = partial(_by_threads, [], **options, threads=number)
    loaders["ThreadLoader, its default"] = partial(_by_threads, chosen, **options)
    rounds: dict[str, list[Round]] = {name: [] for name in loaders}
    failed = {}
    for number in range(ROUNDS):
        names = [*rounds]
        for name in names[number:] + names[:number]:  # a different one begins each time
            tell(f"round {number + 1} of {ROUNDS}: {name}")
            gc.collect()  # the loader before this one is gone, and so are its threads or processes
            try:
                rounds[name].append(_timed(loaders[name](dataset, Endless(samples)), size, seconds))
            except Exception as error:
                if not name.startswith("torch"):
                    raise
                failed[name] = error
                del rounds[name]
    return rounds, failed, chosen


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
