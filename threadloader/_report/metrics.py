"""Metrics: what was counted, as numbers by their names, for loggers and dashboards.

The names are promised: a dashboard that was made once goes on to work.  A value that is not known
has no name: 0 would be a false measurement, and NaN makes every sum and mean of a dashboard NaN.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from threadloader._report.counted import Counted

__all__ = ["COUNTERS", "GAUGES", "metrics_of"]

# The names, and what they are.  Those that only grow:
COUNTERS = {
    "epochs_total": "Epochs that were begun.",
    "batches_total": "Batches delivered.",
    "samples_total": "Samples fetched.",
    "bytes_total": "Bytes of the batches delivered, as far as that is known.",
    "skipped_total": "Samples left out.",
    "wait_seconds_total": "Seconds in which the loop waited for batches.",
    "fetch_seconds_total": "Seconds in the dataset, of all threads together.",
    "collate_seconds_total": "Seconds writing and collating, of all threads together.",
}
# Those that go up and down; rates and shares are of the last seconds:
GAUGES = {
    "samples_per_second": "Samples fetched in a second.",
    "batches_per_second": "Batches delivered in a second.",
    "bytes_per_second": "Bytes of batches delivered in a second.",
    "wait_share": "Share of the loop's time in which it waited for batches.",
    "wait_seconds_p50": "Seconds that half of the batches were waited for at most.",
    "wait_seconds_p99": "Seconds that 99 of 100 batches were waited for at most.",
    "loading_share": "Share of the loop's time that waiting, planning and making batches took.",
    "fetch_seconds": "Seconds a sample in the dataset.",
    "write_seconds": "Seconds a sample for writing it into its batch.",
    "collate_seconds": "Seconds a sample in the collate function.",
    "copy_seconds": "Seconds a sample for giving it to the device.",
    "cpu_share": "Share of the time in the dataset on a processor.",
    "waiting_share": "Share of the time in the dataset waiting, not for a processor.",
    "pool_share": "Share of their time in which the threads had something to do.",
    "window_share": "Share of the planned batches that were done when one was asked for.",
    "cores": "Cores that the process used.",
    "threads": "Threads that may run samples at once.",
    "window": "Batches that are planned ahead at the most.",
    "planned": "Batches that are planned now.",
    "done": "Batches that are done now, and not delivered.",
    "slots_free": "Slots that are free.",
    "slots_filling": "Slots that are being filled.",
    "slots_held": "Slots of batches that the loop holds.",
    "slots_bytes": "Bytes of the slots that are free or held by the loop.",
}


def _window_share(counted: Counted) -> float | None:
    """Return that of the last seconds; of an epoch that is too short for that, that of now."""
    share = counted.recent.window_share
    return counted.done / counted.planned if share is None and counted.planned else share


def _measured(counted: Counted) -> dict[str, float | None]:
    """Return the gauges of the last seconds, as far as there is something that they are of."""
    recent, sample = counted.recent, counted.recent.per_sample
    found: dict[str, float | None] = {}
    if recent.samples:
        found |= {
            "fetch_seconds": sample.fetch,
            "write_seconds": sample.write,
            "collate_seconds": sample.collate,
            "copy_seconds": sample.copy,
        }
    if recent.batches:
        found |= {"wait_seconds_p50": recent.wait_p50, "wait_seconds_p99": recent.wait_p99}
    if recent.seconds:
        found |= {
            "wait_share": recent.wait_share,
            "loading_share": recent.loading_share,
            "cores": recent.cores,
        }
    if recent.seconds and counted.totals.batches:  # then 0 is a rate: the loop, or a sample, hangs
        found |= {
            "samples_per_second": recent.samples_per_second,
            "batches_per_second": recent.batches_per_second,
            "bytes_per_second": recent.nbytes / recent.seconds,
        }
    return found


def metrics_of(counted: Counted, prefix: str = "") -> dict[str, float]:
    """Return the metrics by their names; those that are not known are left out.

    Args:
        counted: What the loader has counted.
        prefix: Put before each name.
    """
    totals, recent, slots = counted.totals, counted.recent, counted.slots
    found: dict[str, float | None] = {
        "epochs_total": counted.epochs,
        "batches_total": totals.batches,
        "samples_total": totals.samples,
        "bytes_total": totals.nbytes,
        "skipped_total": counted.skipped_count,
        "wait_seconds_total": totals.wait_seconds,
        "fetch_seconds_total": totals.fetch_seconds,
        "collate_seconds_total": totals.collate_seconds,
        **_measured(counted),
        "cpu_share": recent.cpu_share,
        "waiting_share": recent.waiting_share,
        "pool_share": recent.pool_share,
        "window_share": _window_share(counted),
        "threads": counted.running,
        "window": counted.window,
        "planned": counted.planned,
        "done": counted.done,
        "slots_free": slots.free,
        "slots_filling": slots.filling,
        "slots_held": slots.leased,
        "slots_bytes": slots.free_bytes + slots.leased_bytes,
    }
    return {prefix + name: float(value) for name, value in found.items() if value is not None}
