"""A fair race of loaders: the same samples, in rounds, in turn, each for the same time.

In each round a loader starts afresh and goes on for a given time.  The rate is counted from its
first batch on.
"""

from __future__ import annotations

import gc
import signal
import time
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from itertools import islice
from statistics import median
from typing import TYPE_CHECKING, Any

from threadloader import _torch
from threadloader._batch.numpy_collate import numpy_collate
from threadloader.loader import ThreadLoader

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator, Sequence


ROUNDS = 3


@dataclass(frozen=True, slots=True)
class Round:
    """One loader's measurements in one round."""

    rate: float  # samples a second, after the first batch
    first: float  # seconds to the first batch, start-up included


class Contender:
    """A way to load batches.

    Args:
        name: In the table.
        kind: ``loop``, ``torch`` or ``ours``.
        batches: Yields batches of a dataset with an endless sampler; is closed at the end.

    Attributes:
        rounds: What was measured.
        threads: Of a `ThreadLoader`: how many it had at the end of each round, and ran at once.
    """

    def __init__(
        self, name: str, kind: str, batches: Callable[[Contender, Any, Any], Generator[Any]]
    ) -> None:
        self.name, self.kind, self._batches = name, kind, batches
        self.rounds: list[Round] = []
        self.threads: list[tuple[int, int]] = []

    def run(self, dataset: Any, samples: int, batch_size: int, seconds: float) -> None:
        """Load for some seconds, and at least two batches."""
        gc.collect()  # the loader before this one is gone, and so are its threads or processes
        arrivals: list[float] = []
        start = time.perf_counter()
        with closing(self._batches(self, dataset, _Endless(samples))) as batches:
            for batch in batches:
                arrivals.append(time.perf_counter())
                del batch
                if len(arrivals) > 1 and arrivals[-1] - arrivals[0] >= seconds:
                    break
        rate = batch_size * (len(arrivals) - 1) / (arrivals[-1] - arrivals[0])
        self.rounds.append(Round(rate, arrivals[0] - start))

    @property
    def rate(self) -> float:
        """The median of the rounds, in samples a second."""
        return median(entry.rate for entry in self.rounds)

    def ratio(self, other: Contender) -> float:
        """Return how much faster it is than another: the median of the ratios in each round."""
        pairs = zip(self.rounds, other.rounds, strict=True)
        return median(one.rate / another.rate for one, another in pairs)


class _Endless:
    """A sampler: the indices of the first samples, over and over."""

    def __init__(self, samples: int) -> None:
        self.samples = samples

    def __iter__(self) -> Iterator[int]:
        while True:
            yield from range(self.samples)


def contenders(
    batch_size: int,
    workers: Sequence[int],
    threads: Sequence[int],
    collate_fn: Callable[[Any], Any] | None,
) -> list[Contender]:
    """Return a bare loop, torch's DataLoader if it is installed, and `ThreadLoader`.

    Args:
        batch_size: Samples in a batch.
        workers: Numbers of torch's processes; 0 loads in the calling thread.
        threads: Numbers of threads; the default comes besides, as the last one.
        collate_fn: Makes a batch of a list of samples; None for each loader's default.
    """
    options: Any = {"batch_size": batch_size, "collate_fn": collate_fn}
    found = [Contender("bare loop", "loop", partial(_by_loop, **options))]
    for number in sorted({*workers}) if _torch.AVAILABLE else ():
        name = f"torch DataLoader, {number} worker{'s' * (number != 1)}"
        batches = partial(_by_torch, **options, num_workers=number)
        found.append(Contender(name, "torch", batches))
    for each in [*sorted({*threads}), None]:
        name = "its default" if each is None else f"{each} thread{'s' * (each != 1)}"
        batches = partial(_by_threads, **options, threads=each)
        found.append(Contender(f"ThreadLoader, {name}", "ours", batches))
    return found


def _by_loop(
    _: Contender, dataset: Any, sampler: _Endless, *, batch_size: int, collate_fn: Any
) -> Generator[Any]:
    collate_fn = collate_fn or (_torch.default_collate if _torch.AVAILABLE else numpy_collate)
    indices = iter(sampler)
    while True:
        yield collate_fn([dataset[index] for index in islice(indices, batch_size)])


def _by_torch(_: Contender, dataset: Any, sampler: _Endless, **options: Any) -> Generator[Any]:
    quiet = _ignore_interrupts
    yield from _torch.DataLoader(dataset, sampler=sampler, worker_init_fn=quiet, **options)


def _by_threads(
    contender: Contender, dataset: Any, sampler: _Endless, **options: Any
) -> Generator[Any]:
    with ThreadLoader(dataset, sampler=sampler, **options) as loader:
        try:
            yield from loader
        finally:
            statistics = loader.statistics()
            contender.threads.append((statistics.workers, statistics.running))


def _ignore_interrupts(_: int) -> None:
    """Let the calling process end torch's: a terminal sends Ctrl-C to all."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def race(
    found: list[Contender],
    dataset: Any,
    samples: int,
    batch_size: int,
    seconds: float,
    tell: Callable[[str], None],
) -> list[tuple[Contender, Exception]]:
    """Run every loader in every round; a different one begins each time.

    Args:
        found: The loaders; torch's that fail are taken out.
        dataset: A map-style dataset.
        samples: The first ones of it are used.
        batch_size: Samples, at least 1.
        seconds: For each loader, over all rounds.
        tell: Called with what is done now.

    Returns:
        torch's loaders that failed, and why.
    """
    failed = []
    for number in range(ROUNDS):
        start = number % len(found)
        for contender in found[start:] + found[:start]:
            tell(f"round {number + 1} of {ROUNDS}: {contender.name}")
            try:
                contender.run(dataset, samples, batch_size, seconds / ROUNDS)
            except Exception as error:
                if contender.kind != "torch":
                    raise
                found.remove(contender)
                failed.append((contender, error))
    return failed
