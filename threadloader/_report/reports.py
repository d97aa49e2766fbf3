"""What a loader says of itself: metrics, verdict, trace; and in a notebook, its page."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any

from threadloader._order.resume import Position, has_ended
from threadloader._threads.machine import usable_cores
from threadloader._threads.tuner import gil_is_enabled
from threadloader.errors import SlowLoadingWarning, warn_user

if TYPE_CHECKING:
    import os
    from contextlib import AbstractContextManager

    from threadloader._report.stats import Deliveries, Stats
    from threadloader._report.verdict import Verdict
    from threadloader._threads.tuner import Tuner


class Reports:
    """What a `ThreadLoader` says and shows of itself; a part of that class.

    Threads:
        metrics, verdict, trace: shared.
        resumes_after: consumer.
    """

    def metrics(self: Any, prefix: str = "loader/") -> dict[str, float]:
        """Return what was counted as numbers by their names, for a logger of metrics.

        Rates and shares are those of the last seconds.  What is not known has no name in it.

        Args:
            prefix: Put before each name; see docs/observing.md for the names.
        """
        from threadloader._report.metrics import metrics_of  # noqa: PLC0415  # rarely needed

        return metrics_of(self.statistics(), prefix)

    def verdict(self: Any) -> Verdict:
        """Return what the loop waits for, by what was counted in the last epoch."""
        self._live_here()
        return judged(
            self._session.stats, self._fixed.tuner, self.num_workers > 0, self._fixed.iterable
        )

    def trace(
        self: Any, path: str | os.PathLike[str], *, limit: int = 500_000
    ) -> AbstractContextManager[None]:
        """Record what every thread does, for Perfetto (ui.perfetto.dev) or chrome://tracing.

        It is a context, around an epoch, a part of one, or several::

            with loader.trace("trace.json"):
                for batch in loader:
                    train_step(batch)

        Args:
            path: Of the file, which is written at the end; ``.json.gz`` is compressed.
            limit: Events that are recorded, at least 1; the file and the log (``threadloader``)
                say how many more there were.  A ticket makes three or four.

        Raises:
            OSError: By ``with``: the file can't be written.
            ValueError: The limit is less than 1.
        """
        from threadloader._report.recording import recorded  # noqa: PLC0415  # rarely used

        if limit < 1:
            msg = f"limit must be at least 1, not {limit}"
            raise ValueError(msg)
        self._live_here()
        return recorded(path, self._session.stats, limit)

    def resumes_after(self: Any) -> int:
        """Return how many batches the next ``iter()`` leaves out: it goes on from a loaded state.

        ``len()`` is that of the whole epoch, for progress bars, too: they begin here, as in
        ``tqdm(loader, initial=loader.resumes_after())``.  It is 0 where an epoch begins anew.
        """
        saved = self._session.run.saved
        if saved is None or has_ended(saved):
            return 0
        return Position.of(saved["epoch"], saved).batches

    def __repr__(self: Any) -> str:
        described = []
        with suppress(AttributeError):  # it is being made
            described = self._described()
        return f"<{type(self).__name__}{' of ' * bool(described)}{', '.join(described)}>"

    def _described(self: Any) -> list[str]:
        """Return in a few words what is loaded."""
        described = [type(self.dataset).__name__]
        # The length of an iterable is noted when it is asked for: see `__len__`.
        if not self._fixed.iterable:
            with suppress(Exception):  # a sampler of the user's may have none
                batches = len(self)
                described.append(f"{batches:,} {'batch' if batches == 1 else 'batches'}")
        if self.batch_size is not None:
            described.append(f"{self.batch_size:,} sample{'s' * (self.batch_size != 1)} in each")
        some = f"{self.num_workers} thread{'s' * (self.num_workers != 1)}"
        return [*described, "as many threads as are fastest" if self._fixed.tunes_threads else some]


LEAST_SECONDS = 1.0  # of an epoch, without its two longest waits


def warn_if_slow(stats: Stats, counted: Deliveries, setup: tuple[Tuner, bool, bool]) -> None:
    """Warn if the consumer of an epoch waited, not only for its first batch or for another one.

    Args:
        stats: Of the loader.
        counted: Of the epoch.
        setup: What `judged` needs besides.
    """
    if counted.latest - counted.began < LEAST_SECONDS or stats.told or counted is not stats.last:
        return
    from threadloader._report.interval import interval_of  # noqa: PLC0415  # rarely needed
    from threadloader._report.verdict import NOTICED  # noqa: PLC0415  # the same

    epoch = interval_of(*stats.epoch(), threads=0)
    once = epoch.first_seconds + counted.longest_seconds  # the machine may have stood still
    seconds = epoch.seconds - once
    if seconds < LEAST_SECONDS or epoch.loading_seconds - once < NOTICED * seconds:
        return
    verdict = judged(stats, *setup)
    if verdict.kind not in {"consumer-bound", "unknown"}:
        stats.told = True
        warn_user(str(verdict), SlowLoadingWarning)


def judged(stats: Stats, tuner: Tuner, has_workers: bool, iterable: bool) -> Verdict:
    """Return the verdict on the last epoch.

    Args:
        stats: Of the loader.
        tuner: Knows the threads of that epoch.
        has_workers: Whether there are any.
        iterable: Whether the dataset is read in its own order.
    """
    from threadloader._report.interval import interval_of  # noqa: PLC0415  # rarely needed
    from threadloader._report.verdict import Setup, verdict_of  # noqa: PLC0415  # the same

    use = stats.cache_use()
    setup = Setup(
        cores=usable_cores(),
        gil=gil_is_enabled(),
        running=tuner.number if has_workers else 0,
        most=tuner.limits.most if has_workers else 0,
        tuned=has_workers and not tuner.limits.is_fixed,
        iterable=iterable,
        first=stats.epochs <= 1,
        cached=use.kept / use.samples if use is not None and use.is_full else 1.0,
    )
    return verdict_of(interval_of(*stats.epoch(), setup.running), setup)
