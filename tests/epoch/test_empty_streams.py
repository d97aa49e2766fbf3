"""Streams that give nothing where they should give something: there is a warning, and just one."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from support.patience import PATIENCE, Spawn

from threadloader import (
    EmptyReplicaWarning,
    ThreadLoader,
    ThreadLoaderWarning,
    _torch,
    get_worker_info,
)

pytestmark = pytest.mark.filterwarnings("ignore:an iterable that is no IterableDataset")
each_number_of_threads = pytest.mark.parametrize("threads", [0, 1, 3])


class Shards(_torch.IterableDataset):  # type: ignore[misc]  # Any without torch
    """Rows of some shards; a replica reads each as many shards as there are replicas."""

    def __init__(self, *shards: Any) -> None:
        self.shards = shards

    def __iter__(self) -> Iterator[Any]:
        worker: Any = get_worker_info()
        step, first = (1, 0) if worker is None else (worker.num_workers, worker.id)
        for shard in self.shards[first::step]:
            yield from shard


def told(loader: ThreadLoader[Any], epochs: int = 1) -> tuple[list[int], list[Any]]:
    """Return how many samples each epoch gave, and the warnings."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        counts = [sum(len(batch) for batch in loader) for _ in range(epochs)]
    return counts, caught


def make(dataset: Any, **arguments: Any) -> ThreadLoader[Any]:
    return ThreadLoader(dataset, **{"batch_size": 2, "collate_fn": list, "prefetch": 2} | arguments)


@pytest.mark.parametrize("in_order", [True, False])
@pytest.mark.parametrize("persistent", [True, False])
def test_replicas_that_give_nothing_are_named_once_an_epoch(
    persistent: bool, in_order: bool, spawn: Spawn
) -> None:
    loader = make(
        Shards([], range(9), []),
        num_workers=4,
        persistent_workers=persistent,
        in_order=in_order,
    )
    with loader:
        counts, caught = spawn(told, loader, 2).result(PATIENCE)
    assert counts == [9, 9]
    assert [each.category for each in caught] == [EmptyReplicaWarning] * 2
    assert {each.filename for each in caught} == {__file__}
    text = str(caught[0].message)
    assert "3 of 4 (workers 0, 2, 3)" in text
    assert "get_worker_info" in text
    assert "fewer workers" in text
    assert "transform=f" in text


@pytest.mark.parametrize(
    "arguments",
    [
        {"dataset": Shards([1], [2], [3]), "num_workers": 4},  # fewer rows than workers
        {"dataset": Shards(range(2)), "num_workers": 4},  # one batch
        {"dataset": Shards(), "num_workers": 4},
        {"dataset": Shards(range(9)), "num_workers": 1},
        {"dataset": Shards(range(9)), "num_workers": 0},
        {"dataset": Shards(range(9)), "num_workers": 4, "transform": int},  # one reads
        {"dataset": Shards(range(9), range(1)), "num_workers": 2},
    ],
    ids=["tiny", "one batch", "empty", "one", "inline", "transform", "short"],
)
def test_what_is_as_it_should_be_warns_of_nothing(arguments: Any, spawn: Spawn) -> None:
    counts, caught = spawn(told, make(**arguments), 2).result(PATIENCE)
    assert counts[0] == counts[1]
    assert not caught


def generator() -> Iterator[int]:
    yield from range(5)


class Held(_torch.IterableDataset):  # type: ignore[misc]  # Any without torch
    """Returns the same generator in each epoch."""

    def __init__(self) -> None:
        self.rows = generator()

    def __iter__(self) -> Iterator[int]:
        return self.rows


@each_number_of_threads
@pytest.mark.parametrize(
    "iterator",
    [generator, Held, lambda: iter([0, 1, 2, 3, 4]), lambda: map(int, "01234")],
    ids=["generator", "held generator", "list iterator", "map"],
)
def test_an_iterator_that_was_read_to_its_end_is_warned_of_once(
    iterator: Callable[[], Any], threads: int, spawn: Spawn
) -> None:
    threads = min(threads, 1) if iterator is Held else threads
    loader = make(iterator(), threads=threads)
    counts, caught = spawn(told, loader, 4).result(PATIENCE)
    assert counts == [5, 0, 0, 0]
    (warning,) = caught
    assert warning.category is ThreadLoaderWarning
    assert warning.filename == __file__
    assert "can be read once" in str(warning.message)
