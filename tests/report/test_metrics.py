"""The metrics: floats by names that are promised, and documented."""

from __future__ import annotations

import math
import re
from pathlib import Path

import pytest
from support.acting import Acting
from support.patience import PATIENCE, Spawn
from support.shared import SharedList

from threadloader import ThreadLoader
from threadloader._report.metrics import METRICS

TOTALS = {name for name in METRICS if name.endswith("_total")}
KNOWN_AT_FIRST = {
    *TOTALS,
    *("threads", "window", "planned", "done"),
    *("slots_free", "slots_filling", "slots_held", "slots_bytes"),
}
DOCS = Path(__file__).parents[2] / "docs" / "observing.md"


def test_a_loader_that_did_nothing_has_no_false_zeros() -> None:
    metrics = ThreadLoader(range(8), threads=2).metrics("")
    assert set(metrics) == KNOWN_AT_FIRST
    assert all(type(value) is float for value in metrics.values())
    assert metrics["batches_total"] == 0.0
    assert metrics["threads"] == 2.0


@pytest.mark.parametrize("threads", [0, 2])
def test_before_the_first_batch_there_are_no_rates_and_no_seconds_a_sample(
    threads: int, spawn: Spawn
) -> None:
    seen: list[dict[str, float]] = SharedList()
    asks = Acting(8, lambda _: seen.append(loader.metrics("")))
    with ThreadLoader(asks, 8, threads=threads) as loader:
        spawn(list, loader).result(PATIENCE)
        after = loader.metrics("")
    unknown = {"samples_per_second", "batches_per_second", "bytes_per_second", "fetch_seconds"}
    unknown |= {"write_seconds", "collate_seconds", "wait_seconds_p50", "wait_seconds_p99"}
    assert unknown.isdisjoint(seen[0])
    assert unknown <= set(after)


@pytest.mark.parametrize("threads", [0, 1, 2])
def test_metrics_are_what_was_counted_and_totals_never_fall(threads: int, spawn: Spawn) -> None:
    with ThreadLoader(range(64), 4, threads=threads) as loader:
        seen = []
        for _ in range(3):
            spawn(list, loader).result(PATIENCE)
            seen.append(loader.metrics(""))
    totals = [seen[0][f"{name}_total"] for name in ("batches", "samples", "epochs")]
    assert totals == [16.0, 64.0, 1.0]
    for metrics in seen:
        assert metrics["samples_per_second"] > 0
        assert all(map(math.isfinite, metrics.values()))
        assert set(metrics) <= set(METRICS)
        assert all(0 <= metrics[name] <= 1 for name in metrics if name.endswith("_share"))
    for name in TOTALS:
        values = [metrics[name] for metrics in seen]
        assert values == sorted(values), name


def test_names_have_a_prefix_and_are_what_loggers_take() -> None:
    loader = ThreadLoader(range(8))
    assert all(name.startswith("train/") for name in loader.metrics(prefix="train/"))
    for name in loader.metrics():
        # OpenTelemetry's rule for the names of instruments; MLflow's and Prometheus' are wider.
        assert re.fullmatch(r"loader/[A-Za-z0-9_]{1,240}", name)


def test_every_metric_is_documented() -> None:
    documented = set(re.findall(r"`(\w+)`", DOCS.read_text(encoding="utf-8")))
    assert set(METRICS) <= documented
