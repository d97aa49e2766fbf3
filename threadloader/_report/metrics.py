"""Metrics: what was counted, as numbers by their names, for loggers and dashboards.

The names are promised: a dashboard that was made once goes on to work.  A value that is not known
has no name: 0 would be a false measurement, and NaN makes every sum and mean of a dashboard NaN.
"""

from __future__ import annotations

from operator import attrgetter
from typing import Any

# What `ThreadLoader.statistics` has for each name (of several attributes the sum); the attribute
# that is 0 where that is of nothing; and what it is.  Those that only grow:
COUNTERS = {
    "epochs_total": ("epochs", "", "Epochs that were begun."),
    "batches_total": ("totals.batches", "", "Batches delivered."),
    "samples_total": ("totals.samples", "", "Samples fetched."),
    "bytes_total": ("totals.nbytes", "", "Bytes of the batches delivered, as far as known."),
    "skipped_total": ("skipped_count", "", "Samples left out."),
    "wait_seconds_total": ("totals.wait_seconds", "", "Seconds that the loop waited for batches."),
    "fetch_seconds_total": ("totals.fetch_seconds", "", "Seconds of all threads in the dataset."),
    "collate_seconds_total": (
        "totals.collate_seconds",
        "",
        "Seconds of all threads for writing and collating.",
    ),
}
_A_SAMPLE, _SAMPLES, _BATCHES = "recent.per_sample.", "recent.samples", "recent.batches"
_TIME, _ANY = "recent.seconds", "totals.batches"  # then 0 is a rate: a sample, or the loop, hangs
# Those that go up and down; rates and shares are of the last seconds:
GAUGES = {
    "samples_per_second": ("recent.samples_per_second", _ANY, "Samples fetched in a second."),
    "batches_per_second": ("recent.batches_per_second", _ANY, "Batches delivered in a second."),
    "bytes_per_second": ("recent.bytes_per_second", _ANY, "Bytes of batches in a second."),
    "wait_share": ("recent.wait_share", _TIME, "Share of the loop's time waiting for batches."),
    "wait_seconds_p50": ("recent.wait_p50", _BATCHES, "Seconds waited for half of the batches."),
    "wait_seconds_p99": ("recent.wait_p99", _BATCHES, "Seconds waited for 99 of 100 batches."),
    "loading_share": ("recent.loading_share", _TIME, "Share of the loop's time in the loader."),
    "fetch_seconds": (f"{_A_SAMPLE}fetch", _SAMPLES, "Seconds a sample in the dataset."),
    "write_seconds": (f"{_A_SAMPLE}write", _SAMPLES, "Seconds a sample for writing it."),
    "collate_seconds": (f"{_A_SAMPLE}collate", _SAMPLES, "Seconds a sample in collate_fn."),
    "copy_seconds": (f"{_A_SAMPLE}copy", _SAMPLES, "Seconds a sample for giving it to the device."),
    "cpu_share": ("recent.cpu_share", "", "Share of the time in the dataset on a processor."),
    "waiting_share": ("recent.waiting_share", "", "Share of that waiting, not for a processor."),
    "pool_share": ("recent.pool_share", "", "Share of the threads' time in which they worked."),
    "window_share": ("recent.window_share", "", "Share of the planned batches that were done."),
    "cores": ("recent.cores", _TIME, "Cores that the process used."),
    "threads": ("running", "", "Threads that may run samples at once."),
    "window": ("window", "", "Batches that are planned ahead at the most."),
    "planned": ("planned", "", "Batches that are planned now."),
    "done": ("done", "", "Batches that are done now, and not delivered."),
    "slots_free": ("slots.free", "", "Slots that are free."),
    "slots_filling": ("slots.filling", "", "Slots that are being filled."),
    "slots_held": ("slots.leased", "", "Slots of batches that the loop holds."),
    "slots_bytes": ("slots.free_bytes slots.leased_bytes", "", "Bytes of slots free or held."),
}


def metrics_of(statistics: Any, prefix: str = "") -> dict[str, float]:
    """Return the metrics by their names; those that are not known are left out.

    Args:
        statistics: What the loader has counted.
        prefix: Put before each name.
    """
    found: dict[str, float] = {}
    for name, (path, whole, _) in (COUNTERS | GAUGES).items():
        parts = [attrgetter(part)(statistics) for part in path.split()]
        if None not in parts and (not whole or attrgetter(whole)(statistics)):
            found[prefix + name] = float(sum(parts))
    if statistics.planned:  # of an epoch that is too short for that of the last seconds
        found.setdefault(f"{prefix}window_share", statistics.done / statistics.planned)
    return found
