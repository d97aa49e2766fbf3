"""The verdict: what a loop waits for, said from counted figures alone.

It is a pure function: the first row of a table that the figures fit.  Where they do not tell one
cause from another, that is what the row says.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable

    from threadloader._report.interval import Interval


NOTICED = 0.05  # the share of its time that a loop may lose to loading before anybody is told
# All below: choices.  The tests build each case so that it is far on one side of them.
MOST = 0.5  # the share of a whole that makes a part of it the one that counts
SHORT = 0.3  # the share of loading that starting threads may take before that is what counts
START_SECONDS = 1e-3  # of a thread: it takes longer only where the machine stands still
OWN_SECONDS = 3e-4  # a batch, of the calling thread: more than the loader's own work takes
COPY_RATE = 0.25e9  # bytes a second and thread; what writes so fast does nothing but copy
LARGE_NBYTES = 64 << 10  # bytes of a sample: of smaller ones the bytes are not what takes time
RUNNING = 0.25  # of the time that a worker has a core or waits: less waiting is none
WAITING = 0.5  # and more is what counts
BUSY = 0.25  # of the workers' time without a core, and of the cores: more, and others use them
LATE_SECONDS = 2e-3  # from a batch being done to its consumer: a thread that waits for the GIL may
# have to wait for 5 ms, see sys.setswitchinterval; any other is there within some 50 us
# Of a batch: with two of torch's processes the smallest take 0.8 to 1.8 ms (bench: libraries).
PROCESS_SECONDS = 1e-3
GIL_CORES = 0.3  # cores of the workers: with fewer they can't hold the GIL much
COLD = 0.1  # bytes that were read from storage, of the bytes that were delivered
BLOCK_NBYTES = 4 << 10  # bytes that are read for a sample, at the least
PROGRAM_NBYTES = 4 << 20  # bytes that a program may read for itself in an epoch


@dataclass(frozen=True, slots=True, repr=False)
class Verdict:
    """What the loop that takes the batches waits for."""

    kind: str  # see docs/observing.md
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
    shared_out: str = ""  # what threads have of an iterable dataset; see `_MORE`
    first: bool = False  # whether the verdict is on the loader's first epoch
    cached: float = 1.0  # the share of the samples that a cache in memory has, if it is full


def verdict_of(i: Interval, setup: Setup) -> Verdict:
    """Return the verdict on a part of a loader's run.

    Args:
        i: What was counted in it.
        setup: Of the loader, and the machine.
    """
    lost = i.steady_share
    if not (i.batches and i.seconds):
        return Verdict("unknown", 0.0, "No batch was delivered yet.", "")
    if i.batches == 1 and i.first_seconds >= i.loading_seconds:
        took = f"{_in_words(i.first_seconds)}, {i.loading_share:.0%} of the loop's time"
        only = f"One batch was delivered so far, after {took}."
        return Verdict("unknown", i.loading_share, only, "")
    if lost < NOTICED:
        sentence = f"Loading took {lost:.1%} of the loop's time: the loop itself is slower."
        return Verdict("consumer-bound", lost, sentence, "")
    kind, found, advice = _by_share(i, setup) or _by_samples(i, setup)
    how = ""
    if i.is_inline:
        batch = _in_words(i.inline_seconds / i.batches)
        how = f", as the calling thread makes the batches itself ({batch} each)"
    sentence = f"Loading took {lost:.0%} of the loop's time{how}: {found}."
    if setup.cached < 1.0:
        sentence += f" The cache holds {setup.cached:.0%}: each epoch reads the rest again."
    return Verdict(kind, lost, sentence, advice)


def _by_share(i: Interval, setup: Setup) -> tuple[str, str, str] | None:
    """Return kind, sentence and advice of what takes most of a whole; None if nothing does."""
    for share in SHARES:
        took = share.seconds(i, setup)
        whole = i.busy_seconds if share.of_making else i.loading_seconds
        if took > share.least * whole:
            words = "the time in which batches are made" if share.of_making else "that"
            part = f"takes {_in_words(took / i.batches)} a batch, {took / whole:.0%} of {words}"
            return share.kind, f"{share.what} {part}", share.advice
    return None


def _by_samples(i: Interval, setup: Setup) -> tuple[str, str, str]:
    """Return the same by what samples do."""
    if not (i.cpu_share or i.waiting_share):
        return "unknown", "no sample's CPU time was measured", ""
    if _holds_gil(i, setup):
        running = setup.running if setup.tuned else setup.most
        threads = _threads(running) if running else "the calling thread and others"
        times = setup.cores / max(1.0, i.worker_cores or 0.0)
        processes = (
            f"{_NO_GIL} torch's DataLoader with num_workers={setup.cores} would load up to "
            f"{times:.1f} times as many samples a second."
        )
        held = f"samples hold the GIL, so {threads} used {_used(i, setup)}"
        return "gil-bound", held, processes
    waits = _waits(i)
    waiting = f"a sample waits in {waits:.0%} of its {_in_words(i.per_sample.fetch)}"
    if waits < RUNNING:
        return "cpu-bound", _computing(i, setup), _more_cores(i, setup)
    if waits < WAITING:
        return "unknown", f"{waiting}, and computes in the rest", ""
    if setup.gil and (i.worker_cores or 0.0) > WAITING:
        used = f"that the workers use {_used(i, setup)} does not tell"
        return "unknown", f"{waiting}, for I/O or for the GIL: {used}", ""
    # A program that starts reads some, too.
    least = max(COLD * i.nbytes, BLOCK_NBYTES * i.samples, PROGRAM_NBYTES)
    if setup.first and i.read_nbytes > least:
        read = f"{1e-6 * i.read_nbytes:,.0f} MB were read from storage in this first epoch"
        later = "Wait for the next epoch: what fits into memory is found there."
        return "cold-cache", f"{waiting}, and {read}", later
    return "waiting", f"{waiting}, for a file, a network or a lock", _more_threads(setup)


def _in_words(seconds: float) -> str:
    """Return a time in words."""
    if seconds >= 1:
        return f"{seconds:.1f} s"
    if seconds >= 1e-3:
        return f"{1e3 * seconds:.1f} ms"
    return f"{1e6 * seconds:.0f} us" if seconds >= 1e-5 else f"{1e6 * seconds:.1f} us"


def _threads(number: int) -> str:
    return f"{number} thread{'s' * (number != 1)}"


def _own(i: Interval) -> float:
    """Return the seconds that the loop's own thread had more to do for loading than usual."""
    return i.plan_seconds if i.plan_seconds > OWN_SECONDS * i.batches else 0.0


def _copies_fast(i: Interval) -> bool:
    """Whether samples are large, and written so fast that it is their bytes that take the time."""
    return i.nbytes >= max(LARGE_NBYTES * i.samples, COPY_RATE * i.write_seconds)


def _waits(i: Interval) -> float:
    """Return the share of the time of samples in which they wait, and not for a core."""
    cpu, waiting = i.cpu_share or 0.0, i.waiting_share or 0.0
    return waiting / (cpu + waiting) if cpu + waiting else 0.0


def _holds_gil(i: Interval, setup: Setup) -> bool:
    """Whether the GIL is what keeps the threads from being faster.

    Either fewer threads than cores were found to be as fast, though samples compute.  Or threads
    wait; and a consumer whose batch is done has to wait for the GIL as well.
    """
    if not setup.gil or setup.cores < 2 or (i.worker_cores or 0.0) < GIL_CORES:
        return False
    fewer = setup.running < min(setup.most, setup.cores)
    if setup.tuned and fewer and _waits(i) < RUNNING:
        cheap = i.is_inline and i.inline_seconds <= PROCESS_SECONDS * i.batches
        return not cheap and (i.delay_share or 0.0) < BUSY
    late = i.late_seconds > LATE_SECONDS * max(1, i.waits)
    return setup.most > 1 and late and (fewer or _waits(i) >= RUNNING)


def _used(i: Interval, setup: Setup) -> str:
    return f"{i.worker_cores or 0.0:.1f} of {setup.cores} cores"


def _computing(i: Interval, setup: Setup) -> str:
    cpu, delay = i.per_sample.fetch * (i.cpu_share or 0.0), i.delay_share or 0.0
    others = f"; for {delay:.0%} of their time other programs or threads had the cores"
    took = f"a sample takes {_in_words(cpu)} of CPU time, and samples used {_used(i, setup)}"
    return took + others if delay > BUSY else took


def _more_cores(i: Interval, setup: Setup) -> str:
    """Return what helps samples that compute."""
    if not setup.shared_out:
        if setup.most == 0:
            return _NO_NUMBER
        if i.is_inline:
            return (
                "Threads would not be faster: use larger batches, or __getitems__, which makes all "
                "samples of a batch in one call."
            )
    idle = (i.worker_cores or 0.0) < MOST * setup.cores + MOST
    if idle and not setup.tuned and max(1, setup.most) < setup.cores:
        return _MORE[setup.shared_out].format(setup.cores)
    if (i.delay_share or 0.0) > BUSY and i.cores < (1 - BUSY) * setup.cores:
        return "Leave more cores to this program: the machine is busy with other work, too."
    return "Make samples cheaper (with images: smaller ones, a faster decoder), or use more cores."


def _more_threads(setup: Setup) -> str:
    """Return what helps samples that wait."""
    if setup.tuned and setup.running < setup.most:
        more = f"More than {_threads(setup.running)}" if setup.running else "Threads"
        return f"{more} were not faster: keep the data nearer, or read less of it."
    if setup.tuned:
        return f"All {setup.most} threads run: raise max_threads to {4 * setup.most}."
    if setup.shared_out:
        return _MORE[setup.shared_out].format(4 * max(1, setup.most))
    return _NO_NUMBER


_NO_GIL = "Use a free-threaded Python, a decoder that releases the GIL, or processes."
_NO_NUMBER = "Leave out the number of threads: the loader finds it."
_MORE = {
    "": "Try more threads: threads={}.",
    "samples": "Try more threads: threads={}.",
    "replicas": "Use more replicas, each with a thread: threads={}.",
    "one": "One thread reads an iterable: move slow work into transform=, for all threads.",
}


class Share(NamedTuple):
    """A row of the table of what may take most of a whole: the first that does is the verdict."""

    kind: str
    what: str  # takes the time, in words
    seconds: Callable[[Interval, Setup], float]
    advice: str = ""
    of_making: bool = False  # whether the whole is the time of making batches, not of the loop
    least: float = MOST  # the share of the whole


SHARES = (
    # The loop's own thread.
    Share(
        "rank-bound",
        "waiting for other ranks, whose batches came later,",
        lambda i, _: i.rank_wait_seconds,
        "See their verdicts; and share the data out more evenly: files of one size, several for "
        "each rank.",
    ),
    Share(
        "copy-bound",
        "waiting for batches that were made and not yet on the device",
        lambda i, _: i.copy_wait_seconds,
        "Send fewer bytes: uint8 images, converted on the device; or raise device_prefetch.",
    ),
    Share(
        "copy-bound",
        "copying to the device, in the loop's own thread,",
        lambda i, _: min(i.copy_seconds, _own(i)),
        "Send fewer bytes: uint8 images, converted on the device.",
    ),
    Share(
        "sampler-bound",
        "drawing from the sampler, in the loop's own thread,",
        lambda i, _: _own(i) - i.copy_seconds,
        "Make the sampler cheaper: draw the order of an epoch at once, for example.",
    ),
    Share(
        "start-bound",
        "starting threads, since epochs are short,",
        lambda i, _: min(i.start_seconds, START_SECONDS * i.threads),
        "Keep the threads from one epoch to the next: persistent_workers=True.",
        least=SHORT,
    ),
    Share(
        "unknown",
        "time outside of all counted stages (start of threads, worker_init_fn, unfinished samples)",
        lambda i, _: i.wait_seconds + i.inline_seconds - i.busy_seconds,
    ),
    # The threads that make the batches.
    Share(
        "collate-bound",
        "collating",
        lambda i, _: i.collate_seconds,
        "Make collate_fn cheaper. Samples of one shape, and of up to 64 parts, need none.",
        of_making=True,
    ),
    Share(
        "memory-bound",
        "copying samples into their batch",
        lambda i, _: i.write_seconds if _copies_fast(i) else 0.0,
        "Make samples of fewer bytes (uint8 instead of float32, say): more threads share the same "
        "memory.",
        of_making=True,
    ),
    Share(
        "write-bound",
        "writing samples into their batch",
        lambda i, _: i.write_seconds,
        "Return fewer parts a sample (one array instead of many numbers), or make all samples of a "
        "batch in one call: by __getitems__, or as rows of an array.",
        of_making=True,
    ),
    Share(
        "start-bound",
        "loading data in the first sample of each epoch",
        lambda i, setup: 0.0 if setup.first else i.first_use_seconds,
        "Load the data in __init__, or keep the workers: persistent_workers=True.",
        of_making=True,
    ),
)
