"""Prometheus: the metrics of loaders, collected whenever they are scraped.

    collector = LoaderCollector()
    collector.add(train_loader, "train")
    prometheus_client.start_http_server(8000)

Nothing is counted for it: a scrape reads what the loaders count anyway.
"""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Any

from prometheus_client import REGISTRY
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

from threadloader._report.metrics import COUNTERS, GAUGES

if TYPE_CHECKING:
    from collections.abc import Iterator

    from prometheus_client.registry import CollectorRegistry

    from threadloader.loader import ThreadLoader

__all__ = ["LoaderCollector"]


class LoaderCollector(Collector):  # type: ignore[misc]  # not installed where types are checked
    """The metrics of some loaders, as ``threadloader_<name>{loader="..."}``.

    One for a registry: two would give it the same metrics twice.  A loader that is dropped is
    collected no longer.

    Args:
        registry: By default that of the process.

    Threads:
        collect: shared; a scrape comes in a thread of its own.
        add: one thread.
    """

    def __init__(self, registry: CollectorRegistry = REGISTRY) -> None:
        # Replaced whole by `add`; read by the thread that collects.
        self._loaders: dict[str, weakref.ref[ThreadLoader[Any]]] = {}
        registry.register(self)

    def add(self, loader: ThreadLoader[Any], name: str) -> None:
        """Collect the metrics of a loader, until it is dropped.

        Args:
            loader: The loader; a weak reference to it is kept.
            name: The value of the label ``loader``: ``"train"``, say.  A loader of that name
                is collected no longer.
        """
        self._loaders = {**self._loaders, name: weakref.ref(loader)}

    def collect(self) -> Iterator[CounterMetricFamily | GaugeMetricFamily]:
        """Yield the metrics of all loaders that are still there."""
        found = [(name, reference()) for name, reference in self._loaders.items()]
        metrics = {name: loader.metrics("") for name, loader in found if loader is not None}
        found.clear()
        kinds: list[
            tuple[dict[str, tuple[str, str, str]], type[CounterMetricFamily | GaugeMetricFamily]]
        ] = [
            (COUNTERS, CounterMetricFamily),
            (GAUGES, GaugeMetricFamily),
        ]
        for documented, kind in kinds:
            for metric, (_, _, text) in documented.items():
                family = kind(f"threadloader_{metric}", text, labels=["loader"])
                for name, values in metrics.items():
                    if metric in values:
                        family.add_metric([name], values[metric])
                yield family

    def describe(self) -> list[Any]:
        """Return nothing: a registry asks no loader when this is registered."""
        return []
