"""Loaders timed fairly, one against another: the same images, round by round in turn.

In each round a loader starts afresh, delivers its first batch, goes on for a given time and is
then emptied, because the sampler ends: what its workers did ahead is delivered too, so time
and CPU are divided by exactly the samples they were spent on.  Breaking off instead would
charge a loader for every batch it holds ready.
"""

from __future__ import annotations

import gc
import math
import time
from contextlib import closing
from dataclasses import dataclass
from statistics import median
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator, Sequence, Sized

__all__ = ["Contender", "Result", "Round", "TimedSampler", "race", "summarise"]

ROUNDS = 3


class TimedSampler:
    """Yield a dataset's indices, over and over, in whole batches until a time is reached.

    Args:
        samples: Samples in the dataset, at least 1.
        batch_size: Samples in a batch, at least 1.
        least: Batches that are yielded whatever the time.

    Threads:
        All in the consumer's thread: every loader here draws its indices there.
    """

    def __init__(self, samples: int, batch_size: int, least: int) -> None:
        self.samples = samples
        self.batch_size = batch_size
        self.least = least
        self.stop_at = math.inf  # seconds, on time.perf_counter

    def __iter__(self) -> Iterator[int]:
        batch = 0
        while batch < self.least or time.perf_counter() < self.stop_at:
            for row in range(self.batch_size):
                yield (batch * self.batch_size + row) % self.samples
            batch += 1


class Contender(Protocol):
    """A way to load batches."""

    @property
    def name(self) -> str:
        """What the table calls it."""

    @property
    def turn(self) -> int:
        """Batches from one delivery of a worker to its next, where each makes whole ones.

        Workers that make whole batches side by side finish them in bursts; only over whole
        turns is the time between two deliveries the time that those batches took.
        """

    @property
    def foreign(self) -> bool:
        """Whether a failure of it is another project's, and the race goes on without it."""

    def batches(self, dataset: Sized, sampler: TimedSampler) -> Generator[object, None, None]:
        """Load batches of ``sampler.batch_size``; start up on the first, clean up at the end."""

    def child_seconds(self) -> float:
        """CPU time that child processes have used since the program began, in seconds."""


@dataclass(frozen=True, slots=True)
class Round:
    """One loader's measurements in one round."""

    rate: float  # samples a second, after the first batch
    first: float  # seconds to the first batch, start-up included
    cpu: float  # seconds of CPU a sample, in this process and its workers


@dataclass(frozen=True, slots=True)
class Result:
    """The medians over a loader's rounds."""

    name: str
    rate: float  # samples a second
    spread: float  # the range of the rates, as a share of their median
    first: float  # seconds
    cpu: float  # seconds


def race(
    contenders: Sequence[Contender],
    dataset: Sized,
    batch_size: int,
    seconds: float,
    on_batch: Callable[[Contender, float, float], None],
) -> Iterator[tuple[Contender, Round | Exception]]:
    """Run every loader in every round; a different one begins each time.

    A foreign loader that raises is left out of the rounds that follow.

    Args:
        contenders: The loaders.
        dataset: A map-style dataset.
        batch_size: Samples, at least 1.
        seconds: For each loader, over all rounds.
        on_batch: Called after each turn with the loader, its seconds in this round (at most
            its share) and its rate so far (samples a second).

    Yields:
        A loader, and its measurements or the error that a foreign one raised.
    """
    running = list(contenders)
    for number in range(ROUNDS):
        start = number % max(1, len(running))
        for contender in running[start:] + running[:start]:
            try:
                yield (
                    contender,
                    _round(contender, dataset, batch_size, seconds / ROUNDS, on_batch),
                )
            except Exception as error:
                if not contender.foreign:
                    raise
                running.remove(contender)
                yield contender, error


def _round(
    contender: Contender,
    dataset: Any,
    batch_size: int,
    seconds: float,
    on_batch: Callable[[Contender, float, float], None],
) -> Round:
    gc.collect()  # the loader before this one is gone, and so are its threads or processes
    sampler = TimedSampler(len(dataset), batch_size, least=contender.turn + 1)
    arrivals: list[float] = []
    cpu = time.process_time() + contender.child_seconds()
    start = time.perf_counter()
    with closing(contender.batches(dataset, sampler)) as batches:
        for batch in batches:
            arrivals.append(time.perf_counter())
            del batch
            sampler.stop_at = arrivals[0] + seconds
            later = len(arrivals) - 1
            if later and later % contender.turn == 0:
                spent = arrivals[-1] - arrivals[0]
                on_batch(contender, min(spent, seconds), batch_size * later / spent)
    cpu = time.process_time() + contender.child_seconds() - cpu
    return Round(
        rate=batch_size * steady_rate(arrivals, sampler.stop_at, contender.turn),
        first=arrivals[0] - start,
        cpu=cpu / (batch_size * len(arrivals)),
    )


def steady_rate(arrivals: Sequence[float], stop_at: float, turn: int) -> float:
    """Compute the rate at which batches arrived after the first and before the sampler ended.

    Args:
        arrivals: Times of delivery, in seconds; at least ``turn + 1`` of them.
        stop_at: The time at which the sampler ended; what came later was work done ahead.
        turn: See `Contender.turn`.

    Returns:
        Batches a second, over as many whole turns as there were, and at least one.
    """
    in_time = sum(arrival <= stop_at for arrival in arrivals)
    last = max(1, (in_time - 1) // turn) * turn
    return last / (arrivals[last] - arrivals[0])


def summarise(contender: Contender, rounds: Sequence[Round]) -> Result:
    """Take the medians of a loader's rounds."""
    rates = [entry.rate for entry in rounds]
    return Result(
        name=contender.name,
        rate=median(rates),
        spread=(max(rates) - min(rates)) / median(rates),
        first=median(entry.first for entry in rounds),
        cpu=median(entry.cpu for entry in rounds),
    )
