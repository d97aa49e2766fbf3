"""The verdict on an epoch, and the warning of one that waited, by what was counted."""

from __future__ import annotations

from typing import TYPE_CHECKING

from threadloader._report.interval import interval_of
from threadloader._report.verdict import NOTICED, Setup, verdict_of
from threadloader._threads.machine import usable_cores
from threadloader._threads.tuner import gil_is_enabled
from threadloader.errors import SlowLoadingWarning, warn_user

if TYPE_CHECKING:
    from threadloader._report.stats import Deliveries, Stats
    from threadloader._report.verdict import Verdict
    from threadloader._threads.tuner import Tuner


LEAST_SECONDS = 1.0  # of an epoch, without its two longest waits


def warn_if_slow(stats: Stats, counted: Deliveries, setup: tuple[Tuner, bool, str]) -> None:
    """Warn if the consumer of an epoch waited, not only for its first batch or for another one.

    Args:
        stats: Of the loader.
        counted: Of the epoch.
        setup: What `judged` needs besides.
    """
    if counted.latest - counted.began < LEAST_SECONDS or stats.told or counted is not stats.last:
        return
    epoch = interval_of(*stats.epoch(), threads=0)
    once = epoch.first_seconds + counted.longest_seconds  # the machine may have stood still
    seconds = epoch.seconds - once
    if seconds < LEAST_SECONDS or epoch.loading_seconds - once < NOTICED * seconds:
        return
    verdict = judged(stats, *setup)
    if verdict.kind not in {"consumer-bound", "unknown"}:
        stats.told = True
        warn_user(str(verdict), SlowLoadingWarning)


def judged(stats: Stats, tuner: Tuner, has_workers: bool, shared_out: str) -> Verdict:
    """Return the verdict on the last epoch.

    Args:
        stats: Of the loader.
        tuner: Knows the threads of that epoch.
        has_workers: Whether there are any.
        shared_out: What threads have of an iterable, as in the settings.
    """
    use = stats.cache_use()
    setup = Setup(
        cores=usable_cores(),
        gil=gil_is_enabled(),
        running=tuner.number if has_workers else 0,
        most=tuner.limits.most if has_workers else 0,
        tuned=has_workers and not tuner.limits.is_fixed,
        shared_out=shared_out,
        first=stats.epochs <= 1,
        cached=use.kept / use.samples if use is not None and use.is_full else 1.0,
    )
    return verdict_of(interval_of(*stats.epoch(), setup.running), setup)
