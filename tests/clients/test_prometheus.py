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


def scraped(registry: Any) -> dict[tuple[str, str], float]:
    return read(prometheus_client.generate_latest(registry))


def read(text: bytes) -> dict[tuple[str, str], float]:
    families = text_string_to_metric_families(text.decode())
    samples = [sample for family in families for sample in family.samples]
    return {(sample.name, sample.labels["loader"]): sample.value for sample in samples}


@pytest.fixture
def registry() -> Any:
    return prometheus_client.CollectorRegistry()


def test_loaders_have_names_of_which_the_last_counts_while_it_lives(registry: Any) -> None:
    loaders = [ThreadLoader(range(8), threads=threads) for threads in (1, 2, 3)]
    collector = LoaderCollector(registry)
    for loader, name in zip(loaders, ("train", "val", "train"), strict=True):
        collector.add(loader, name)
    samples = scraped(registry)
    assert samples["threadloader_threads", "train"] == 3.0
    assert samples["threadloader_threads", "val"] == 2.0
    del loaders[1:], loader
    gc.collect()
    assert scraped(registry) == {}


def test_a_scrape_over_http_while_a_loop_runs_has_what_was_counted(registry: Any) -> None:
    server, thread = prometheus_client.start_http_server(0, "127.0.0.1", registry)
    try:
        with ThreadLoader(range(64), 4, threads=2) as loader:
            LoaderCollector(registry).add(loader, "train")
            url = f"http://127.0.0.1:{server.server_port}/metrics"
            for number, _ in enumerate(loader):
                with urllib.request.urlopen(url) as reply:  # our own server
                    samples = read(reply.read())
                assert samples["threadloader_batches_total", "train"] == number + 1
            names = {name for name, _ in scraped(registry)}
            assert names == {f"threadloader_{name}" for name in loader.metrics("")}
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
