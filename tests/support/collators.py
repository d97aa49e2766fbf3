"""Collate functions that keep something on themselves, and are wrong if threads share it."""

from __future__ import annotations

from threading import Barrier
from typing import Any

from support.patience import PATIENCE, Spawn
from threadloader import ThreadLoader

THREADS = 4
NUMBERS = [[number] for number in range(THREADS)]


class Meeting:
    """Where all workers meet while they collate; it is one for all, as it has a barrier."""

    barrier = Barrier(THREADS)


def meet() -> None:
    Meeting.barrier.wait(PATIENCE)


class Scratch:
    """A helper that nobody calls; wrong if two threads use it at once."""

    def collate(self, samples: Any) -> Any:
        self.samples = samples
        meet()
        return self.samples


class Collator(Scratch):
    """The usual class."""

    def __call__(self, samples: Any) -> Any:
        return self.collate(samples)


class NotCallable:
    """As a data module: it gives a method of its own."""

    def __init__(self, helper: Any = None) -> None:
        self.helper = helper
        self.by_name = {"first": [helper]}

    def collate(self, samples: Any) -> Any:
        if self.helper is not None:
            assert self.by_name["first"][0] is self.helper
            return self.helper.collate(samples)
        self.samples = samples
        meet()
        return self.samples


def call(collator: Any, samples: Any) -> Any:
    return collator(samples)


def load(dataset: Any, collate_fn: Any, spawn: Spawn, **options: Any) -> list[Any]:
    """Load as many batches as there are threads, all of which are collated at once."""
    arguments = {"batch_size": 1, "num_workers": THREADS, "prefetch": THREADS} | options
    with ThreadLoader(dataset, collate_fn=collate_fn, **arguments) as loader:
        return spawn(list, loader).result(2 * PATIENCE)
