"""What a loader did in a part of its run: an epoch, or the last seconds."""

from __future__ import annotations

from dataclasses import dataclass
from operator import sub
from typing import TYPE_CHECKING

from threadloader._work.snapshot import Snapshot
from threadloader._work.stats import wait_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from threadloader._work.snapshot import Span

__all__ = ["Interval", "Stages", "interval_of"]


@dataclass(frozen=True, slots=True)
class Stages:
    """Seconds, or seconds a sample, in each stage; of all threads together."""

    fetch: float  # in the dataset
    write: float  # writing samples into their rows
    collate: float  # in the collate function, where samples are not written into rows
    copy: float  # giving batches to the device


@dataclass(frozen=True, slots=True)
class Interval:
    """What a loader did between two moments; a share is a number from 0 to 1.

    A share is None where it can't be known: of nothing, or where the system does not tell.
    """

    seconds: float
    threads: int  # that may run samples at once; 0 is the calling thread
    batches: int  # delivered
    samples: int  # fetched
    nbytes: int  # bytes of the batches delivered, as far as that is known
    loading_seconds: float  # of the consumer, in ``iter()`` and ``next()``
    first_seconds: float  # the part of it up to the first batch; 0 if that came before
    start_seconds: float  # the part of that in which it started threads
    wait_seconds: float  # the part of it in which it waited for workers
    inline_seconds: float  # the part of it in which it made samples and batches itself
    wait_p50: float  # seconds: half of the calls of ``next()`` took longer than that, half shorter
    wait_p99: float  # seconds: one call of ``next()`` in a hundred took longer
    late_seconds: float  # of ``wait_seconds``: after the batch was done
    waits: int  # batches that workers had not done when they were asked for
    first_use_seconds: float  # of the workers: in samples that loaded data for all, on first use
    copy_wait_seconds: float  # of ``wait_seconds``: for batches that were done and not copied
    rank_wait_seconds: float  # of ``loading_seconds``: for other ranks, which have more to load
    stages: Stages  # seconds
    cpu_share: float | None  # of fetching and writing: on a processor; found by some tickets
    delay_share: float | None  # of the same: ready, without a core; 0 if the system does not tell
    window_share: float | None  # of the batches that were planned: done, when one was asked for
    cores: float  # that the whole process used
    read_nbytes: int  # bytes that the process read from storage, past the page cache

    @property
    def samples_per_second(self) -> float:
        """Samples fetched in a second."""
        return self.samples / self.seconds if self.seconds else 0.0

    @property
    def batches_per_second(self) -> float:
        """Batches delivered in a second."""
        return self.batches / self.seconds if self.seconds else 0.0

    @property
    def plan_seconds(self) -> float:
        """Seconds of the consumer's time for the sampler, and for the loader's own work."""
        waited = self.wait_seconds + self.rank_wait_seconds + self.start_seconds
        return max(0.0, self.loading_seconds - waited - self.inline_seconds)

    @property
    def wait_share(self) -> float:
        """The share of the consumer's time in which it waited for workers, or did their work."""
        waited = self.wait_seconds + self.inline_seconds
        return min(1.0, waited / self.seconds) if self.seconds else 0.0

    @property
    def loading_share(self) -> float:
        """The share of the consumer's time that loading took: in ``iter()`` and ``next()``."""
        return min(1.0, self.loading_seconds / self.seconds) if self.seconds else 0.0

    @property
    def steady_share(self) -> float:
        """The same after the first batch, which is waited for in any case."""
        seconds = self.seconds - self.first_seconds
        return min(1.0, (self.loading_seconds - self.first_seconds) / seconds) if seconds > 0 else 0

    @property
    def is_inline(self) -> bool:
        """Whether the calling thread made the batches, for the larger part."""
        return self.inline_seconds > 0.5 * self.busy_seconds

    @property
    def busy_seconds(self) -> float:
        """Seconds that all workers together had a ticket."""
        return self.stages.fetch + self.stages.write + self.stages.collate

    @property
    def pool_share(self) -> float | None:
        """The share of their time in which the threads that may run had a ticket."""
        if not (self.threads and self.seconds):
            return None
        return min(1.0, self.busy_seconds / (self.threads * self.seconds))

    @property
    def worker_cores(self) -> float | None:
        """The cores that the workers used for fetching and writing."""
        if self.cpu_share is None or not self.seconds:
            return None
        return self.cpu_share * (self.stages.fetch + self.stages.write) / self.seconds

    @property
    def waiting_share(self) -> float | None:
        """The share of fetching and writing in which a worker neither ran nor lacked a core only.

        It waited for a file, a network, a lock, or for the GIL.
        """
        if self.cpu_share is None:
            return None
        return max(0.0, 1.0 - self.cpu_share - (self.delay_share or 0.0))

    @property
    def per_sample(self) -> Stages:
        """Seconds a sample in each stage; of the thread that had it."""
        samples, stages = self.samples or 1, self.stages
        return Stages(
            stages.fetch / samples,
            stages.write / samples,
            stages.collate / samples,
            stages.copy / samples,
        )


def interval_of(span: Span, threads: int) -> Interval:
    """Return what was done in a part of a loader's run.

    Args:
        span: The part.
        threads: That may run samples at once.
    """
    before, after = span.before, span.after
    changed = Snapshot._make(map(sub, after, before))
    seconds = max(0.0, changed.at)
    stages = Stages(
        changed.fetch_seconds,
        changed.write_seconds,
        changed.collate_seconds,
        changed.copy_seconds,
    )
    return Interval(
        seconds=seconds,
        threads=threads,
        batches=changed.batches,
        samples=changed.samples,
        nbytes=changed.nbytes,
        loading_seconds=changed.loading_seconds,
        first_seconds=span.first_seconds,
        start_seconds=span.start_seconds,
        wait_seconds=max(0.0, changed.wait_seconds),
        inline_seconds=changed.inline_seconds,
        wait_p50=_quantile(span.in_next, changed.batches, 0.5),
        wait_p99=_quantile(span.in_next, changed.batches, 0.99),
        late_seconds=changed.late_seconds,
        waits=changed.waits,
        first_use_seconds=changed.first_use_seconds,
        copy_wait_seconds=changed.copy_wait_seconds,
        rank_wait_seconds=changed.rank_wait_seconds,
        stages=stages,
        cpu_share=_cpu_share(changed),
        delay_share=_share(changed.watched_delay_seconds, changed.watched_seconds),
        window_share=_share(changed.seen_done, changed.seen),
        cores=changed.process_seconds / (seconds or 1.0),
        read_nbytes=changed.read_nbytes,
    )


def _cpu_share(changed: Snapshot) -> float | None:
    """Return the share of fetching and writing on a processor.

    Few tickets are measured, so it may come out too large: the whole process has used no less.
    """
    share = _share(changed.timed_cpu_seconds, changed.timed_seconds)
    most = _share(changed.process_seconds, changed.fetch_seconds + changed.write_seconds)
    return share if share is None or most is None else min(share, most)


def _share(part: float, whole: float) -> float | None:
    return min(1.0, part / whole) if whole > 0 else None


def _quantile(in_next: Sequence[int], batches: int, fraction: float) -> float:
    """Return the time that a fraction of the calls of ``next()`` does not exceed, to some 9%.

    Args:
        in_next: How many long calls there were, by the bucket of their time, shortest first.
        batches: All of them; the other calls count as 0 seconds.
        fraction: From 0 to 1.
    """
    left = fraction * batches - (batches - sum(in_next))
    if left <= 0:
        return 0.0
    for bucket, count in enumerate(in_next):
        left -= count
        if count and left <= 0:
            return wait_of(bucket)
    return 0.0
