"""Metrics: what was counted, as numbers by their names, for loggers and dashboards.

The names are promised: a dashboard that was made once goes on to work.  A value that is not known
has no name: 0 would be a false measurement, and NaN makes every sum and mean of a dashboard NaN.
"""

from __future__ import annotations

from operator import attrgetter
from typing import Any

_A_SAMPLE, _SAMPLES, _BATCHES = "recent.per_sample.", "recent.samples", "recent.batches"
_TIME, _ANY = "recent.seconds", "totals.batches"  # then 0 is a rate: a sample, or the loop, hangs
# What `ThreadLoader.statistics` has for each name (of several attributes the sum); and the
# attribute that is 0 where that is of nothing.  Totals only grow; rates and shares are those of the
# last seconds.
METRICS = {
    "epochs_total": ("epochs", ""),
    "batches_total": ("totals.batches", ""),
    "samples_total": ("totals.samples", ""),
    "bytes_total": ("totals.nbytes", ""),
    "skipped_total": ("skipped_count", ""),
    "wait_seconds_total": ("totals.wait_seconds", ""),
    "fetch_seconds_total": ("totals.fetch_seconds", ""),
    "collate_seconds_total": ("totals.collate_seconds", ""),
    "samples_per_second": ("recent.samples_per_second", _ANY),
    "batches_per_second": ("recent.batches_per_second", _ANY),
    "bytes_per_second": ("recent.bytes_per_second", _ANY),
    "wait_share": ("recent.wait_share", _TIME),
    "wait_seconds_p50": ("recent.wait_p50", _BATCHES),
    "wait_seconds_p99": ("recent.wait_p99", _BATCHES),
    "loading_share": ("recent.loading_share", _TIME),
    "fetch_seconds": (f"{_A_SAMPLE}fetch", _SAMPLES),
    "write_seconds": (f"{_A_SAMPLE}write", _SAMPLES),
    "collate_seconds": (f"{_A_SAMPLE}collate", _SAMPLES),
    "copy_seconds": (f"{_A_SAMPLE}copy", _SAMPLES),
    "cpu_share": ("recent.cpu_share", ""),
    "waiting_share": ("recent.waiting_share", ""),
    "pool_share": ("recent.pool_share", ""),
    "window_share": ("recent.window_share", ""),
    "cores": ("recent.cores", _TIME),
    "threads": ("running", ""),
    "window": ("window", ""),
    "planned": ("planned", ""),
    "done": ("done", ""),
    "slots_free": ("slots.free", ""),
    "slots_filling": ("slots.filling", ""),
    "slots_held": ("slots.leased", ""),
    "slots_bytes": ("slots.free_bytes slots.leased_bytes", ""),
}


def metrics_of(statistics: Any, prefix: str = "") -> dict[str, float]:
    """Return the metrics by their names; those that are not known are left out.

    Args:
        statistics: What the loader has counted.
        prefix: Put before each name.
    """
    found: dict[str, float] = {}
    for name, (path, whole) in METRICS.items():
        parts = [attrgetter(part)(statistics) for part in path.split()]
        if None not in parts and (not whole or attrgetter(whole)(statistics)):
            found[prefix + name] = float(sum(parts))
    if statistics.planned:  # of an epoch that is too short for that of the last seconds
        found.setdefault(f"{prefix}window_share", statistics.done / statistics.planned)
    return found
