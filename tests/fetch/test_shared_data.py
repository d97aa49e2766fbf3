"""What is data, or can't be copied, is one for all workers: their copies share it."""

from __future__ import annotations

import collections
import functools
import queue
import threading
from typing import Any

import numpy as np
import pytest
from support.worker_copies import THREADS, Compose, Mapped, auto_copy, racing_transform, together

from threadloader import ThreadLoader

# What refuses to be copied, or should not be


def _refusing(name: str) -> type:
    def refuse(*_: object) -> None:
        msg = "not to be copied"
        raise TypeError(msg)

    return type("Refuses", (Mapped,), {name: refuse})


@pytest.mark.filterwarnings("ignore:all workers share")
def test_a_dataset_that_refuses_to_be_copied_is_shared() -> None:
    dataset = _refusing("__copy__")(float)
    assert auto_copy(dataset) is dataset
    assert together(dataset) == [0, 1, 2, 3]


def test_a_transform_that_refuses_to_be_copied_is_shared_alone() -> None:
    class Refuses(_refusing("__copy__")):  # type: ignore[misc]
        __call__ = float

    refusing = Refuses(None)
    compose = Compose([refusing, racing_transform()])
    twin = auto_copy(Mapped(compose)).transform
    assert twin.transforms[0] is refusing
    assert twin.transforms[1] is not compose.transforms[1]


def test_a_dataset_that_copies_itself_to_something_else_is_shared() -> None:
    class Changes(Mapped):
        def __copy__(self) -> list[int]:
            return [1, 2]

    dataset = Changes(float)
    assert auto_copy(dataset) is dataset


# What is shared


def _shared_parts() -> dict[str, Any]:
    return {
        "array": np.zeros(3),
        "big list": list(range(5000)),
        "big dict": dict.fromkeys(range(5000)),
        "big set": set(range(5000)),
        "function": auto_copy,
        "lambda": lambda value: value,
        "class": Mapped,
        "module": np,
        "text": "text" * 100,
        "bit generator": np.random.PCG64(0),
        "lock": threading.Lock(),
        "reentrant lock": threading.RLock(),
        "condition": threading.Condition(),
        "semaphore": threading.BoundedSemaphore(2),
        "event": threading.Event(),
        "barrier": threading.Barrier(2),
        "thread-local": threading.local(),
        "queue": queue.Queue(),
        "cache": functools.lru_cache(maxsize=3)(abs),
    }


class Tells(Mapped):
    """Samples are what the worker's dataset and transform have."""

    part: Any = None

    def __getitem__(self, index: int) -> Any:
        return id(self.part), id(self.transform.part)


@pytest.mark.filterwarnings("ignore:all workers share")
@pytest.mark.parametrize("name", list(_shared_parts()))
def test_a_dataset_and_a_transform_share(name: str) -> None:
    part = _shared_parts()[name]
    dataset, transform = Tells(Compose([])), Compose([])
    dataset.transform, dataset.part, transform.part = transform, part, part  # type: ignore[attr-defined]
    assert ids_of(dataset) == {(id(part), id(part))}


def ids_of(dataset: Any) -> set[Any]:
    """Return what all workers have, each of which loads a sample."""
    with ThreadLoader(dataset, None, threads=THREADS, collate_fn=tuple) as loader:
        return set(loader)


def test_a_generator_that_is_shared_gives_no_two_workers_the_same_numbers() -> None:
    class EpochDraws:
        def __init__(self) -> None:
            self.generator = np.random.default_rng(0)

        def __call__(self, _value: int) -> int:
            return int(self.generator.integers(2**62))

    dataset = Mapped(EpochDraws(), size=64)
    with ThreadLoader(dataset, batch_size=8, threads=THREADS) as loader:
        drawn = [number for batch in loader for number in np.asarray(batch).tolist()]
    assert len(set(drawn)) == 64


@pytest.mark.parametrize(
    "dataset",
    [
        [3, 1, 2],
        (3, 1, 2),
        range(1, 4),
        {0: 3, 1: 1, 2: 2},
        np.array([3, 1, 2]),
        collections.deque([3, 1, 2]),
        collections.UserList([3, 1, 2]),
    ],
    ids=lambda dataset: type(dataset).__name__,
)
def test_plain_containers_are_datasets(dataset: Any) -> None:
    delivered = together(dataset)
    assert delivered == [int(dataset[index]) for index in range(3)]


def test_tensors_are_shared() -> None:
    torch = pytest.importorskip("torch")
    dataset = Tells(Compose([]))
    dataset.part = dataset.transform.part = torch.arange(4)
    assert ids_of(dataset) == {(id(dataset.part), id(dataset.part))}
