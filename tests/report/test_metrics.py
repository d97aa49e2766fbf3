"""The metrics: floats by names that are promised, and documented."""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from support.patience import PATIENCE

from threadloader import ThreadLoader
from threadloader._report.metrics import COUNTERS, GAUGES

if TYPE_CHECKING:
    from support.patience import Spawn

KNOWN_AT_FIRST = {
    *COUNTERS,
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
    seen: list[dict[str, float]] = []

    class Asks:
        def __len__(self) -> int:
            return 8

        def __getitem__(self, index: int) -> int:
            if not seen:
                seen.append(loader.metrics(""))
            return index

    with ThreadLoader(Asks(), 8, threads=threads) as loader:
        spawn(list, loader).result(PATIENCE)
        after = loader.metrics("")
    unknown = {"samples_per_second", "batches_per_second", "bytes_per_second", "fetch_seconds"}
    unknown |= {"write_seconds", "collate_seconds", "wait_seconds_p50", "wait_seconds_p99"}
    assert unknown.isdisjoint(seen[0])
    assert unknown <= set(after)


@pytest.mark.parametrize("threads", [0, 1, 2])
def test_metrics_are_what_was_counted(threads: int, spawn: Spawn) -> None:
    with ThreadLoader(range(64), 4, threads=threads) as loader:
        spawn(list, loader).result(PATIENCE)
        metrics = loader.metrics("")
    assert (metrics["batches_total"], metrics["samples_total"], metrics["epochs_total"]) == (
        16.0,
        64.0,
        1.0,
    )
    assert metrics["samples_per_second"] > 0
    assert all(map(math.isfinite, metrics.values()))
    assert set(metrics) <= {*COUNTERS, *GAUGES}
    assert all(0 <= value <= 1 for name, value in metrics.items() if name.endswith("_share"))


def test_the_window_of_a_short_epoch_is_that_of_now(spawn: Spawn) -> None:
    with ThreadLoader(range(64), 4, threads=1, prefetch=4) as loader:
        iterator = iter(loader)
        spawn(next, iterator).result(PATIENCE)
        assert 0 <= loader.metrics("")["window_share"] <= 1
        assert loader.statistics().recent.window_share is None


def test_what_only_grows_never_falls(spawn: Spawn) -> None:
    with ThreadLoader(range(64), 4, threads=1) as loader:
        seen: list[dict[str, float]] = []
        for _ in range(3):
            spawn(list, loader).result(PATIENCE)
            seen.append(loader.metrics(""))
    for name in COUNTERS:
        values = [metrics[name] for metrics in seen]
        assert values == sorted(values), name


@pytest.mark.parametrize(("given", "prefix"), [({}, "loader/"), ({"prefix": "train/"}, "train/")])
def test_names_have_a_prefix(given: Any, prefix: str) -> None:
    names = ThreadLoader(range(8)).metrics(**given)
    assert all(name.startswith(prefix) for name in names)


def test_names_are_what_loggers_take() -> None:
    # OpenTelemetry's rule for the names of instruments; MLflow's and Prometheus' are wider.
    for name in ThreadLoader(range(8)).metrics():
        assert re.fullmatch(r"[A-Za-z][A-Za-z0-9_./-]{0,254}", name)


def test_every_metric_is_documented() -> None:
    documented = set(re.findall(r"`(\w+)`", DOCS.read_text(encoding="utf-8")))
    assert {*COUNTERS, *GAUGES} <= documented
