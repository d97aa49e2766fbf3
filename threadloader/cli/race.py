"""A fair race of loaders: the same samples, in rounds, in turn.

In each round a loader starts afresh, delivers its first batch and goes on for a given time.  Then
the sampler ends, and the loader delivers what its workers did ahead.  So time and CPU are divided
by exactly the samples that they were spent on.  A race that broke off instead would charge a
loader for every batch that it holds ready.
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
        all: one thread, the consumer's: every loader here draws its indices there.
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
        """Its name in the table."""

    @property
    def turn(self) -> int:
        """Batches between two deliveries of one worker, if each worker makes whole batches.

        Workers that make whole batches side by side finish them in bursts.  Only over whole turns
        is the time between two deliveries the time that the batches took.
        """

    @property
    def foreign(self) -> bool:
        """Whether it belongs to another project: if it fails, the race goes on without it."""

    def batches(self, dataset: Sized, sampler: TimedSampler) -> Generator[object, None, None]:
        """Yield batches of ``sampler.batch_size``; start on the first, clean up at the end."""

    def child_seconds(self) -> float:
        """Return the CPU time of child processes since the program began, in seconds."""


@dataclass(frozen=True, slots=True)
class Round:
    """One loader's measurements in one round."""

    rate: float  # samples a second, after the first batch
    first: float  # seconds to the first batch, start-up included
    cpu: float  # seconds of CPU for a sample, in this process and its workers


@dataclass(frozen=True, slots=True)
class Result:
    """The medians over a loader's rounds."""

    name: str
    slowest: float  # samples a second
    fastest: float
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
    samples: int | None = None,
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
        samples: The first ones of the dataset are used; None for all.

    Yields:
        A loader, and its measurements or the error of a foreign one.
    """
    running = list(contenders)
    samples = len(dataset) if samples is None else samples
    for number in range(ROUNDS):
        start = number % max(1, len(running))
        for contender in running[start:] + running[:start]:
            try:
                yield (
                    contender,
                    _round(contender, dataset, samples, batch_size, seconds / ROUNDS, on_batch),
                )
            except Exception as error:
                if not contender.foreign:
                    raise
                running.remove(contender)
                yield contender, error


def _round(
    contender: Contender,
    dataset: Any,
    samples: int,
    batch_size: int,
    seconds: float,
    on_batch: Callable[[Contender, float, float], None],
) -> Round:
    gc.collect()  # the loader before this one is gone, and so are its threads or processes
    sampler = TimedSampler(samples, batch_size, least=contender.turn + 1)
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
    """Return the rate of batches that arrived after the first and before the sampler ended.

    Args:
        arrivals: Times of delivery, in seconds; at least ``turn + 1`` of them.
        stop_at: The time at which the sampler ended; later batches were loaded ahead.
        turn: See `Contender.turn`.

    Returns:
        Batches a second, over as many whole turns as there were, and at least one.
    """
    in_time = sum(arrival <= stop_at for arrival in arrivals)
    last = max(1, (in_time - 1) // turn) * turn
    return last / (arrivals[last] - arrivals[0])


def summarise(contender: Contender, rounds: Sequence[Round]) -> Result:
    """Return the medians of a loader's rounds."""
    rates = [entry.rate for entry in rounds]
    return Result(
        name=contender.name,
        slowest=min(rates),
        fastest=max(rates),
        rate=median(rates),
        spread=(max(rates) - min(rates)) / median(rates),
        first=median(entry.first for entry in rounds),
        cpu=median(entry.cpu for entry in rounds),
    )
