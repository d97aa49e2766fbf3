"""The end of an epoch whose consumer waited: one line that says what for, once a loader."""

from __future__ import annotations

from typing import TYPE_CHECKING

from threadloader._warnings import warn_user
from threadloader.errors import SlowLoadingWarning

if TYPE_CHECKING:
    from threadloader._report.verdict import Verdict
    from threadloader._tuning.tuner import Tuner
    from threadloader._work.counters import Deliveries
    from threadloader._work.stats import Stats

__all__ = ["judged", "warn_if_slow"]

LEAST_SECONDS = 1.0  # of an epoch, without its two longest waits


def warn_if_slow(stats: Stats, counted: Deliveries, setup: tuple[Tuner, bool, bool]) -> None:
    """Warn if the consumer of an epoch waited, not only for its first batch or for another one.

    Args:
        stats: Of the loader.
        counted: Of the epoch.
        setup: As of `Setup.of`.
    """
    if counted.latest - counted.began < LEAST_SECONDS or stats.told or counted is not stats.last:
        return
    from threadloader._report.verdict import NOTICED  # noqa: PLC0415  # rarely needed

    before, after = stats.epoch()
    first = after.first_seconds - before.first_seconds
    once = first + counted.longest_seconds  # the machine may have stood still
    seconds = after.seconds - before.seconds - once
    if seconds < LEAST_SECONDS:
        return
    if after.loading_seconds - before.loading_seconds - once < NOTICED * seconds:
        return
    verdict = judged(stats, *setup)
    if verdict.kind not in {"consumer-bound", "unknown"}:
        stats.told = True
        warn_user(str(verdict), SlowLoadingWarning)


def judged(stats: Stats, tuner: Tuner, has_workers: bool, iterable: bool) -> Verdict:
    """Return the verdict on the last epoch.

    Args:
        stats: Of the loader.
        tuner: Of the same; see `Setup.of`.
        has_workers: See there.
        iterable: See there.
    """
    from threadloader._report.interval import interval_of  # noqa: PLC0415  # rarely needed
    from threadloader._report.verdict import Setup, verdict_of  # noqa: PLC0415  # the same

    setup = Setup.of(tuner, has_workers, iterable)._replace(first=stats.epochs <= 1)
    return verdict_of(interval_of(*stats.epoch(), setup.running), setup)
