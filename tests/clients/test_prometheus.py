"""Prometheus: a scrape finds the metrics of every loader that is registered and alive."""

from __future__ import annotations

import gc
import json
import re
import urllib.request
from pathlib import Path
from typing import Any

import pytest

prometheus_client = pytest.importorskip("prometheus_client")

from prometheus_client.parser import text_string_to_metric_families  # noqa: E402  # if it is there

from threadloader import ThreadLoader  # noqa: E402
from threadloader._report.metrics import COUNTERS, GAUGES  # noqa: E402
from threadloader.integrations.prometheus import LoaderCollector  # noqa: E402

DASHBOARD = Path(__file__).parents[2] / "docs" / "grafana-dashboard.json"


def _samples(text: str) -> dict[tuple[str, str], float]:
    return {
        (sample.name, sample.labels["loader"]): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def _scraped(registry: Any) -> dict[tuple[str, str], float]:
    return _samples(prometheus_client.generate_latest(registry).decode())


@pytest.fixture
def registry() -> Any:
    return prometheus_client.CollectorRegistry()


def test_a_scrape_has_what_was_counted(registry: Any) -> None:
    with ThreadLoader(range(64), 4, threads=1) as loader:
        LoaderCollector(registry).add(loader, "train")
        list(loader)
        samples = _scraped(registry)
        metrics = loader.metrics("")
    assert samples["threadloader_batches_total", "train"] == 16.0
    assert {name for name, _ in samples} == {f"threadloader_{name}" for name in metrics}


def test_loaders_have_names(registry: Any) -> None:
    train, validation = ThreadLoader(range(8), threads=1), ThreadLoader(range(8), threads=2)
    collector = LoaderCollector(registry)
    collector.add(train, "train")
    collector.add(validation, "val")
    samples = _scraped(registry)
    assert samples["threadloader_threads", "train"] == 1.0
    assert samples["threadloader_threads", "val"] == 2.0


def test_a_name_that_is_used_again_is_the_later_loader(registry: Any) -> None:
    loaders = [ThreadLoader(range(8), threads=threads) for threads in (1, 2)]
    collector = LoaderCollector(registry)
    for loader in loaders:
        collector.add(loader, "train")
    assert _scraped(registry)["threadloader_threads", "train"] == 2.0


def test_a_dropped_loader_is_scraped_no_longer(registry: Any) -> None:
    loader: ThreadLoader[Any] | None = ThreadLoader(range(8), threads=1)
    assert loader is not None
    LoaderCollector(registry).add(loader, "train")
    loader = None
    gc.collect()
    assert _scraped(registry) == {}


def test_a_scrape_over_http_while_a_loop_runs(registry: Any) -> None:
    server, thread = prometheus_client.start_http_server(0, "127.0.0.1", registry)
    try:
        with ThreadLoader(range(64), 4, threads=2) as loader:
            LoaderCollector(registry).add(loader, "train")
            url = f"http://127.0.0.1:{server.server_port}/metrics"
            for number, _ in enumerate(loader):
                if number % 5 == 0:
                    with urllib.request.urlopen(url) as reply:  # our own server
                        samples = _samples(reply.read().decode())
                    assert samples["threadloader_batches_total", "train"] == number + 1
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def test_the_dashboard_asks_for_metrics_that_there_are() -> None:
    dashboard = json.loads(DASHBOARD.read_text(encoding="utf-8"))
    asked = [target["expr"] for panel in dashboard["panels"] for target in panel["targets"]]
    names = {name for expression in asked for name in re.findall(r"threadloader_\w+", expression)}
    assert names <= {f"threadloader_{name}" for name in (*COUNTERS, *GAUGES)}
    assert len(names) > 10
