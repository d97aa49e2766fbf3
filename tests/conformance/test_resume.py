"""A loaded state: what follows is what torchdata's StatefulDataLoader gives."""

from __future__ import annotations

import json
from functools import partial
from itertools import islice
from typing import Any

import pytest
from support.patience import PATIENCE
from support.resuming import Cursor

pytest.importorskip("torchdata")
from collections.abc import Iterator

from support.patience import Spawn
from torch.utils.data import IterableDataset, get_worker_info
from torchdata.stateful_dataloader import StatefulDataLoader
from torchdata.stateful_dataloader.sampler import StatefulDistributedSampler

from conformance.loading import ours

SIZE = 11


class Forgets:
    """A worker's share of some numbers, downwards; has no state."""

    def items(self) -> list[int]:
        info = get_worker_info()
        worker, workers = (0, 1) if info is None else (info.id, info.num_workers)
        return list(range(SIZE))[::-1][worker::workers]

    def __iter__(self) -> Iterator[int]:
        return iter(self.items())


class KeepsPlace(Forgets):
    """Its passes go on at its place, which is the beginning after the end of a pass."""

    place = 0

    def __iter__(self) -> Iterator[int]:
        items = self.items()
        while self.place < len(items):
            self.place += 1
            yield items[self.place - 1]
        self.place = 0

    def state_dict(self) -> dict[str, int]:
        return {"place": self.place}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.place = state["place"]


class IteratorKeepsPlace(Forgets):
    """Its iterator has a state."""

    def __iter__(self) -> Iterator[int]:
        return Cursor(self.items())


def loader_of(make_loader: Any, kind: Any, *, stream: bool, **arguments: Any) -> Any:
    if stream:
        return make_loader(type("Shard", (kind, IterableDataset), {})(), **arguments)
    if kind is StatefulDistributedSampler:
        arguments["sampler"] = kind(range(SIZE), 2, 1)
    elif kind is not None:
        arguments["sampler"] = kind()
    return make_loader(range(SIZE), **arguments)


def epoch(loader: Any, number: int) -> Iterator[Any]:
    if hasattr(loader.sampler, "set_epoch"):
        loader.sampler.set_epoch(number)
    return (getattr(batch, "tolist", lambda batch=batch: batch)() for batch in loader)


def resumed(make_loader: Any, stop: tuple[int, int], kind: Any, **arguments: Any) -> list[Any]:
    """Return two epochs of a loader that goes on from the state of another."""
    before, taken = stop
    loader = loader_of(make_loader, kind, **arguments)
    for number in range(before):
        list(epoch(loader, number))
    begun = epoch(loader, before)
    ended = len(list(islice(begun, taken))) < taken
    state = json.loads(json.dumps(loader.state_dict()))
    other = loader_of(make_loader, kind, **arguments)
    other.load_state_dict(state)
    return [list(epoch(other, before + ended + number)) for number in range(2)]


STOPS = [(0, 1), (1, 3), (0, 99)]  # whole epochs, and batches of the next one


@pytest.mark.parametrize(
    ("kind", "stop"),
    [
        *((kind, stop) for kind in (None, Forgets, IteratorKeepsPlace) for stop in STOPS),
        # Between two epochs torchdata's sampler has nothing left.
        *((StatefulDistributedSampler, stop) for stop in ((0, 1), (1, 1))),
    ],
)
@pytest.mark.parametrize("batch", [{"batch_size": 2}, {"batch_size": 3, "drop_last": True}])
@pytest.mark.parametrize("every", [1, 2])
def test_what_follows_is_torchdata_s(
    kind: Any, stop: Any, batch: Any, every: int, spawn: Spawn
) -> None:
    given = {"kind": kind, "stream": False, "snapshot_every_n_steps": every, **batch}
    expected = resumed(StatefulDataLoader, stop, **given)
    for threads in (0, 2):
        assert spawn(partial(resumed, ours(threads), stop, **given)).result(PATIENCE) == expected


@pytest.mark.parametrize("kind", [Forgets, KeepsPlace, IteratorKeepsPlace])
@pytest.mark.parametrize("stop", STOPS)
@pytest.mark.parametrize("replicas", [0, 2])
def test_what_follows_of_a_stream_is_torchdata_s(
    kind: Any, stop: Any, replicas: int, spawn: Spawn
) -> None:
    given = {"kind": kind, "stream": True, "batch_size": 2}
    context = {"multiprocessing_context": "fork"} if replicas else {}
    make_loader = partial(StatefulDataLoader, num_workers=replicas, **context)
    expected = resumed(make_loader, stop, **given)
    assert spawn(partial(resumed, ours(replicas), stop, **given)).result(PATIENCE) == expected
