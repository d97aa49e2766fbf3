"""The verdict: what a loop waits for, said from counted figures alone.

It is a pure function.  Where the figures do not tell one cause from another, it says so.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, NamedTuple, TypeAlias

from threadloader._order.tickets import INLINE_SECONDS
from threadloader._threads.concurrency import gil_is_enabled
from threadloader._threads.cores import usable_cores

if TYPE_CHECKING:
    from threadloader._report.interval import Interval
    from threadloader._threads.concurrency import Concurrency
    from threadloader._threads.inline_choice import Slower

__all__ = ["NOTICED", "Kind", "Setup", "Verdict", "verdict_of"]

Kind: TypeAlias = Literal[
    "consumer-bound",
    "cpu-bound",
    "waiting",
    "gil-bound",
    "contention-bound",
    "memory-bound",
    "sampler-bound",
    "collate-bound",
    "write-bound",
    "copy-bound",
    "rank-bound",
    "start-bound",
    "cold-cache",
    "unknown",
]

NOTICED = 0.05  # the share of its time that a loop may lose to loading before anybody is told
# All below: choices.  The tests build each case so that it is far on one side of them.
MOST = 0.5  # the share of a whole that makes a stage the one that counts
ALL = 0.9  # of the same: where samples hardly compute, no other program keeps them waiting
START_SECONDS = 1e-3  # of a thread: it takes longer only where the machine stands still
SHORT = 0.3  # the share of loading that starting threads may take before that is what counts
RUNNING = 0.25  # of the time that a worker has a core or waits: less waiting is none
WAITING = 0.5  # and more is what counts
LATE_SECONDS = 2e-3  # from a batch being done to its consumer: a thread that waits for the GIL may
# have to wait for 5 ms, see sys.setswitchinterval; any other is there within some 50 us
GIL_CORES = 0.3  # cores of the workers: with fewer they can't hold the GIL much
COPY_RATE = 0.25e9  # bytes a second and thread; what writes so fast does nothing but copy
NUMBER_NBYTES = 16  # bytes of a sample: one number, or two
LARGE_NBYTES = 64 << 10  # bytes of a sample: of smaller ones the bytes are not what takes time
COLD = 0.1  # bytes that were read from storage, of the bytes that were delivered
BLOCK_NBYTES = 4 << 10  # bytes that are read for a sample, at the least
PROGRAM_NBYTES = 4 << 20  # bytes that a program may read for itself in an epoch
OWN_SECONDS = 3e-4  # a batch, of the calling thread: more than the loader's own work takes
BUSY = 0.25  # of the workers' time without a core: more, and others use the cores
MOST_THREADS = 256


@dataclass(frozen=True, slots=True, repr=False)
class Verdict:
    """What the loop that takes the batches waits for."""

    kind: Kind
    share: float  # of the loop's time that loading took, from 0 to 1
    sentence: str  # what was found, with the figure
    advice: str  # one thing to do; "" for nothing

    def __str__(self) -> str:
        return f"{self.sentence} {self.advice}".rstrip()

    __repr__ = __str__  # in a notebook, too, it is a sentence


class Setup(NamedTuple):
    """What a verdict needs to know beside what was counted."""

    cores: int  # that this process may use
    gil: bool  # whether the GIL is on
    running: int  # threads that may run samples at once; 0 for the calling thread alone
    most: int  # threads that there may be
    tuned: bool  # whether the number of threads is found while the loop runs
    iterable: bool = False  # whether the dataset is read in its own order
    others: float = 0.0  # of the machine's cores that other programs want, if the system tells
    first: bool = False  # whether the verdict is on the loader's first epoch
    slower: Slower | None = None  # threads than the calling thread, if that was measured

    @classmethod
    def of(cls, concurrency: Concurrency, has_workers: bool, iterable: bool) -> Setup:
        """Return the present one of a loader.

        Args:
            concurrency: Knows the threads of the last epoch.
            has_workers: Whether there are any.
            iterable: See above.
        """
        may = concurrency.range
        most, running = (may.most, concurrency.running()) if has_workers else (0, 0)
        tuned = has_workers and not may.is_fixed
        slower = concurrency.inline_choice.slower if tuned else None
        setup = cls(usable_cores(), gil_is_enabled(), running, most, tuned, iterable)
        return setup._replace(slower=slower, others=_wanted_by_others(running))


def verdict_of(interval: Interval, setup: Setup) -> Verdict:
    """Return the verdict on a part of a loader's run.

    Args:
        interval: What was counted in it.
        setup: Of the loader, and the machine.
    """
    if not (interval.batches and interval.seconds):
        return Verdict("unknown", 0.0, "No batch was delivered yet.", "")
    lost = interval.steady_share
    if interval.batches == 1 and interval.first_seconds >= interval.loading_seconds:
        only = (
            f"One batch was delivered so far, after {_seconds(interval.first_seconds)}, "
            f"{interval.loading_share:.0%} of the loop's time."
        )
        return Verdict("unknown", interval.loading_share, only, "")
    if lost < NOTICED:
        sentence = f"Loading took {lost:.1%} of the loop's time: the loop itself is the slower one."
        return Verdict("consumer-bound", lost, sentence, "")
    return _of_consumer(interval, setup) or _of_workers(interval, setup)


def _said(interval: Interval, kind: Kind, cause: str, advice: str) -> Verdict:
    lost, how = interval.steady_share, ""
    if interval.is_inline:
        batch = _seconds(interval.inline_seconds / interval.batches)
        how = f", as the calling thread makes the batches itself ({batch} each)"
    return Verdict(kind, lost, f"Loading took {lost:.0%} of the loop's time{how}: {cause}.", advice)


def _of_consumer(interval: Interval, setup: Setup) -> Verdict | None:
    """Return the verdict if it is the loop's own thread that loading keeps; else None."""
    whole, planned, copied = interval.loading_seconds, interval.plan_seconds, interval.stages.copy
    if interval.rank_wait_seconds > MOST * whole:
        return _said(
            interval,
            "rank-bound",
            f"{interval.rank_wait_seconds / whole:.0%} of that was waiting for other ranks, whose "
            "batches came later",
            "See their verdicts; and share the data out more evenly: files of one size, several "
            "for each rank.",
        )
    starting = min(interval.start_seconds, START_SECONDS * interval.threads)
    if starting > max(SHORT * whole, planned):
        return _said(
            interval,
            "start-bound",
            f"epochs are short, and starting threads takes {_seconds(interval.start_seconds)} of "
            f"the {_seconds(interval.seconds)} of one",
            "Keep the threads from one epoch to the next: persistent_workers=True"
            + ("." if setup.tuned else "; or choose no number of threads."),
        )
    if interval.copy_wait_seconds > MOST * whole:
        return _said(
            interval,
            "copy-bound",
            f"{interval.copy_wait_seconds / whole:.0%} of the wait was for batches that were made "
            "and not yet on the device",
            "Send fewer bytes: uint8 images, converted on the device; or raise device_prefetch.",
        )
    if planned <= max(MOST * whole, OWN_SECONDS * interval.batches):
        return None
    if copied > MOST * planned:
        return _said(
            interval,
            "copy-bound",
            f"copying a batch to the device takes {_seconds(copied / interval.batches)}, in the "
            "loop's own thread",
            "Send fewer bytes: uint8 images, converted on the device.",
        )
    return _said(
        interval,
        "sampler-bound",
        f"drawing a batch from the sampler takes {_seconds(planned / interval.batches)}, in the "
        "loop's own thread",
        "Make the sampler cheaper: draw the order of an epoch at once, for example.",
    )


def _of_workers(interval: Interval, setup: Setup) -> Verdict:
    """Return the verdict by what the threads that make the batches do."""
    busy, stages = interval.busy_seconds, interval.stages
    if busy < MOST * (interval.wait_seconds + interval.inline_seconds):
        return _said(
            interval,
            "unknown",
            f"samples and batches took {_seconds(busy)} of {_seconds(interval.loading_seconds)}, "
            "and nothing that is counted took the rest (threads that start, worker_init_fn, or a "
            "sample that is not done yet)",
            "",
        )
    if stages.collate > MOST * busy:
        return _said(
            interval,
            "collate-bound",
            f"collating takes {_seconds(stages.collate / interval.batches)} a batch, "
            f"{stages.collate / busy:.0%} of the time in which batches are made",
            "Make collate_fn cheaper, or return samples of one shape, which need none.",
        )
    if stages.write > MOST * busy:
        return _of_writing(interval)
    return _of_fetching(interval, setup)


def _of_writing(interval: Interval) -> Verdict:
    """Return the verdict where writing samples into their rows takes most of the time."""
    share = interval.stages.write / interval.busy_seconds
    part = f"{share:.0%} of the time in which batches are made"
    rate = interval.nbytes / interval.stages.write
    large = interval.nbytes >= LARGE_NBYTES * max(1, interval.samples)
    if large and rate >= COPY_RATE:
        return _said(
            interval,
            "memory-bound",
            f"copying samples into batches takes {part}, at {rate / 1e9:.1f} GB/s a thread",
            "Make samples of fewer bytes (uint8 instead of float32, say): more threads share the "
            "same memory.",
        )
    seconds = _seconds(interval.per_sample.write)
    if interval.nbytes <= NUMBER_NBYTES * interval.samples:
        return _said(
            interval,
            "write-bound",
            f"samples are single numbers, and writing one into its batch takes {seconds}, {part}",
            "Make all samples of a batch in one call, by __getitems__ or as rows of an array.",
        )
    return _said(
        interval,
        "write-bound",
        f"writing a sample into its batch takes {seconds}, {part}",
        "Return fewer parts a sample: one array instead of many numbers, for example."
        if not large
        else "Make samples of fewer bytes (uint8 instead of float32, say), or of fewer parts.",
    )


def _of_fetching(interval: Interval, setup: Setup) -> Verdict:
    """Return the verdict where the dataset takes most of the time."""
    if interval.first_use_seconds > MOST * interval.busy_seconds and not setup.first:
        return _said(
            interval,
            "start-bound",
            f"the first sample of each epoch loads data for the others, which took "
            f"{_seconds(interval.first_use_seconds)}",
            "Load it in __init__, or keep it from one epoch to the next: persistent_workers=True.",
        )
    cpu, waiting = interval.cpu_share, interval.waiting_share
    if cpu is None or waiting is None or not cpu + waiting:
        return _said(interval, "unknown", "no sample's CPU time was measured", "")
    sample, waits = interval.per_sample.fetch, waiting / (cpu + waiting)
    if setup.slower is not None and interval.is_inline:
        holds = _holds_gil(interval, setup, waits)
        kind: Kind = "gil-bound" if holds else "contention-bound"
        return _of_slower_threads(interval, setup, setup.slower, kind)
    if _holds_gil(interval, setup, waits):
        return _said(
            interval,
            "gil-bound",
            f"samples hold the GIL, so {_threads(setup.running if setup.tuned else setup.most)} "
            f"used {interval.worker_cores or 0.0:.1f} of {setup.cores} cores",
            _WITHOUT_GIL,
        )
    if waits < RUNNING:
        used = interval.worker_cores or 0.0
        return _said(
            interval,
            "cpu-bound",
            f"a sample takes {_seconds(sample * cpu)} of CPU time, and samples used "
            f"{used:.1f} of {setup.cores} cores{_of_others(interval)}",
            _more_cores(interval, setup),
        )
    if waits >= WAITING:
        return _of_waiting(interval, setup, sample, waits)
    return _said(
        interval,
        "unknown",
        f"a sample computes in {1 - waits:.0%} of its {_seconds(sample)}, and waits in {waits:.0%}",
        "",
    )


def _of_slower_threads(interval: Interval, setup: Setup, slower: Slower, kind: Kind) -> Verdict:
    """Return the verdict where threads were tried, and were slower than the calling thread."""
    times = slower.waited / slower.here
    figure = (
        f"threads were tried, and the loop waited {_seconds(slower.waited)} for a sample of "
        f"theirs, {times:,.1f} times as long as it takes to make one itself "
        f"({_seconds(slower.here)})"
    )
    if setup.gil:
        return _said(interval, kind, figure, _WITHOUT_GIL)
    return _said(
        interval,
        kind,
        figure,
        "Give each thread its own copy of what all samples look up (a dict, a list, a lock): "
        "dataset_copy='deep', or PerThread.",
    )


def _holds_gil(interval: Interval, setup: Setup, waits: float) -> bool:
    """Whether the GIL is what keeps the threads from being faster.

    Either fewer threads than cores were found to be as fast, though samples compute.  Or threads
    wait; and a consumer whose batch is done has to wait for the GIL as well.
    """
    if not setup.gil or setup.cores < 2 or (interval.worker_cores or 0.0) < GIL_CORES:
        return False
    fewer = setup.running < min(setup.most, setup.cores)
    if setup.tuned and fewer and waits < RUNNING:
        cheap = interval.is_inline and interval.inline_seconds <= INLINE_SECONDS * interval.batches
        return not cheap and (interval.delay_share or 0.0) < BUSY
    late = interval.late_seconds > LATE_SECONDS * max(1, interval.waits)
    return setup.most > 1 and late and (fewer or waits >= RUNNING)


def _of_others(interval: Interval) -> str:
    """Return that others use the cores, if so."""
    delay = interval.delay_share or 0.0
    if delay <= BUSY:
        return ""
    return f"; for {delay:.0%} of their time other programs or threads had the cores"


def _more_cores(interval: Interval, setup: Setup) -> str:
    """Return what helps samples that compute."""
    if setup.most == 0:
        return _NO_NUMBER
    if interval.is_inline:
        return (
            "To give them to other threads would cost more: use larger batches, or __getitems__, "
            "which makes all samples of a batch in one call."
        )
    used = interval.worker_cores or 0.0
    if not setup.tuned and setup.running < setup.cores and used < MOST * setup.cores + MOST:
        return f"Try more threads: threads={setup.cores}."
    if (interval.delay_share or 0.0) > BUSY:
        return "Leave more cores to this program: the machine is busy with other work, too."
    return "Make samples cheaper (with images: smaller ones, a faster decoder), or use more cores."


def _wanted_by_others(running: int) -> float:
    """Return the share of the machine's cores that others wanted in the last minute; 0 if unknown.

    Args:
        running: Threads of this loader that may have been among them, beside the consumer.
    """
    try:
        load = os.getloadavg()[0]
    except (AttributeError, OSError):  # Windows
        return 0.0
    return max(0.0, load - running - 1) / (os.cpu_count() or 1)


def _of_waiting(interval: Interval, setup: Setup, sample: float, waits: float) -> Verdict:
    """Return the verdict where samples wait."""
    if setup.others > MOST and waits < ALL and not interval.delay_share:
        return _said(
            interval,
            "unknown",
            f"a sample is without a core in {waits:.0%} of its {_seconds(sample)}, and others "
            f"want {setup.others:.0%} of this machine's cores: it may wait for one of them",
            "",
        )
    if setup.gil and (interval.worker_cores or 0.0) > WAITING:
        return _said(
            interval,
            "unknown",
            f"a sample waits in {waits:.0%} of its {_seconds(sample)}, for I/O or for the GIL: "
            f"the workers use {interval.worker_cores or 0.0:.1f} cores, and that does not tell",
            "",
        )
    if setup.first and interval.read_nbytes > _much(interval):
        return _said(
            interval,
            "cold-cache",
            f"a sample waits in {waits:.0%} of its {_seconds(sample)}, and "
            f"{interval.read_nbytes / 1e6:,.0f} MB were read from storage in this first epoch",
            "Wait for the next epoch: what fits into memory is found there.",
        )
    return _said(
        interval,
        "waiting",
        f"a sample waits in {waits:.0%} of its {_seconds(sample)}, for a file, a network or a lock",
        _more_threads(setup),
    )


def _much(interval: Interval) -> float:
    """Return the bytes that data read from storage has; a program that starts reads some, too."""
    return max(COLD * interval.nbytes, BLOCK_NBYTES * interval.samples, PROGRAM_NBYTES)


def _more_threads(setup: Setup) -> str:
    """Return what helps samples that wait."""
    more = min(MOST_THREADS, 4 * max(1, setup.most))
    if setup.tuned and setup.running < setup.most:
        return (
            f"No more than {_threads(setup.running)} were found to be faster yet: keep the data "
            "nearer, or read less of it."
        )
    if setup.tuned:
        return f"All {setup.most} threads run: raise max_threads to {4 * setup.most}."
    if setup.iterable:
        return f"Use more replicas, each with a thread: threads={more}." if setup.most else ""
    return f"{_IF_STILL}c{_NO_NUMBER[1:]}" if setup.first else _NO_NUMBER


def _threads(number: int) -> str:
    return f"{number} thread{'s' * (number != 1)}"


_WITHOUT_GIL = "Use a free-threaded Python, a decoder that releases the GIL, or processes."
_IF_STILL = "If it is so in the next epoch, too (data that is loaded once is loaded in the first), "
_NO_NUMBER = "Choose no number of threads: it is found while the loop runs."


def _seconds(seconds: float) -> str:
    """Return a time in words."""
    if seconds >= 1:
        return f"{seconds:.1f} s"
    if seconds >= 1e-3:
        return f"{1e3 * seconds:.1f} ms"
    return f"{1e6 * seconds:.0f} us" if seconds >= 1e-5 else f"{1e6 * seconds:.1f} us"
