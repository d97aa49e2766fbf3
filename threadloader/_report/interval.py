"""What a loader did in a part of its run: an epoch, or the last seconds."""

from __future__ import annotations

import math
from itertools import accumulate
from operator import sub
from typing import NamedTuple

from threadloader._report.stats import DIGIT, STEPS, VALUES, Sums


class Stages(NamedTuple):
    """Seconds, or seconds a sample, in each stage; of all threads together."""

    fetch: float  # in the dataset
    write: float  # writing samples into their rows
    collate: float  # in the collate function, where samples are not written into rows
    copy: float  # giving batches to the device


class Interval(Sums):
    """What a loader did between two moments; a share is a number from 0 to 1.

    A share is None where it can't be known: of nothing, or where the system does not tell.
    """

    __slots__ = ()

    @property
    def samples_per_second(self) -> float:
        """Samples fetched in a second."""
        return self.samples / self.seconds if self.seconds else 0.0

    @property
    def batches_per_second(self) -> float:
        """Batches delivered in a second."""
        return self.batches / self.seconds if self.seconds else 0.0

    @property
    def bytes_per_second(self) -> float:
        """Bytes of batches delivered in a second, as far as that is known."""
        return self.nbytes / self.seconds if self.seconds else 0.0

    @property
    def cores(self) -> float:
        """Cores that the whole process used."""
        return self.process_seconds / self.seconds if self.seconds else 0.0

    @property
    def plan_seconds(self) -> float:
        """Seconds of the consumer's time for the sampler, and for the loader's own work."""
        waited = self.wait_seconds + self.rank_wait_seconds + self.start_seconds
        return max(0.0, self.loading_seconds - waited - self.inline_seconds)

    @property
    def wait_share(self) -> float:
        """The share of the consumer's time in which it waited for workers, or did their work."""
        return _share(self.wait_seconds + self.inline_seconds, self.seconds) or 0.0

    @property
    def loading_share(self) -> float:
        """The share of the consumer's time that loading took: in ``iter()`` and ``next()``."""
        return _share(self.loading_seconds, self.seconds) or 0.0

    @property
    def steady_share(self) -> float:
        """The same after the first batch, which is waited for in any case."""
        seconds = self.seconds - self.first_seconds
        return _share(self.loading_seconds - self.first_seconds, seconds) or 0.0

    @property
    def wait_p50(self) -> float:
        """Seconds: half of the calls of ``next()`` took longer than that, half shorter."""
        return self._quantile(0.5)

    @property
    def wait_p99(self) -> float:
        """Seconds: one call of ``next()`` in a hundred took longer."""
        return self._quantile(0.99)

    @property
    def is_inline(self) -> bool:
        """Whether the calling thread made the batches, for the larger part."""
        return self.inline_seconds > 0.5 * self.busy_seconds

    @property
    def stages(self) -> Stages:
        """Seconds in each stage."""
        return Stages(
            self.fetch_seconds, self.write_seconds, self.collate_seconds, self.copy_seconds
        )

    @property
    def per_sample(self) -> Stages:
        """Seconds a sample in each stage; of the thread that had it."""
        return Stages(*(seconds / (self.samples or 1) for seconds in self.stages))

    @property
    def cpu_share(self) -> float | None:
        """The share of fetching and writing on a processor.

        Few tickets are measured, so it may come out too large: the whole process has used no less.
        """
        share = _share(self.timed_cpu_seconds, self.timed_seconds)
        most = _share(self.process_seconds, self.fetch_seconds + self.write_seconds)
        return share if share is None or most is None else min(share, most)

    @property
    def delay_share(self) -> float | None:
        """The same: ready, without a core; 0 if the system does not tell."""
        return _share(self.watched_delay_seconds, self.watched_seconds)

    @property
    def waiting_share(self) -> float | None:
        """The share of fetching and writing in which a worker neither ran nor lacked a core only.

        It waited for a file, a network, a lock, or for the GIL.
        """
        cpu, delay = self.cpu_share, self.delay_share or 0.0
        return None if cpu is None else max(0.0, 1.0 - cpu - delay)

    @property
    def worker_cores(self) -> float | None:
        """The cores that the workers used for fetching and writing."""
        cpu, seconds = self.cpu_share, self.fetch_seconds + self.write_seconds
        return None if cpu is None or not self.seconds else cpu * seconds / self.seconds

    @property
    def pool_share(self) -> float | None:
        """The share of their time in which the threads that may run had a ticket."""
        return _share(self.busy_seconds, self.threads * self.seconds)

    @property
    def window_share(self) -> float | None:
        """The share of the batches that were planned: done, when one was asked for."""
        return _share(self.seen_done, self.seen)

    def _quantile(self, fraction: float) -> float:
        """Return the time that a fraction of the calls of ``next()`` does not exceed, to some 9%.

        Calls that did not take long count as 0 seconds.
        """
        digits = range(self.in_next.bit_length() // DIGIT + 1)
        counts = [self.in_next >> DIGIT * digit & (1 << DIGIT) - 1 for digit in digits]
        left = fraction * self.batches - (self.batches - sum(counts))
        for bucket, reached in enumerate(accumulate(counts)):
            if 0 < left <= reached:
                return 1e-6 * math.exp2((bucket - 0.5) / STEPS)  # the middle of the bucket
        return 0.0


def interval_of(before: Sums, after: Sums, threads: int) -> Interval:
    """Return what was done between two moments.

    Args:
        before: What was counted up to the first one.
        after: The same of the second one.
        threads: That may run samples at once.
    """
    interval = Interval(*map(sub, VALUES(after), VALUES(before)))
    interval.threads = threads
    return interval


def _share(part: float, whole: float) -> float | None:
    return min(1.0, part / whole) if whole > 0 else None
