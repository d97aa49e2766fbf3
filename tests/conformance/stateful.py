"""Loaders whose state is saved somewhere and loaded again, and what follows it then.

Their samplers and iterable datasets keep their place in themselves, in their iterator, or nowhere.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Any

from support.resuming import Cursor
from torch.utils.data import IterableDataset, get_worker_info
from torchdata.stateful_dataloader.sampler import StatefulDistributedSampler

from conformance.datasets import Samples, WholeBatches

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from conformance.loading import MakeLoader

State = dict[str, Any]


class Items:
    """What is iterated over."""

    def items(self) -> list[Any]:
        raise NotImplementedError


class Indices(Items):
    """Indices downwards, each epoch from another one on; or lists of some."""

    def __init__(self, size: int, rows: int | None = None) -> None:
        self.size = size
        self.rows = rows
        self.epoch = 0

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def items(self) -> list[Any]:
        order = [(self.epoch - place) % self.size for place in range(self.size)]
        if self.rows is None:
            return order
        return [order[start : start + self.rows] for start in range(0, self.size, self.rows)]

    def __len__(self) -> int:
        return len(self.items())


class Shard(Items, IterableDataset[Any]):
    """A worker's share of some numbers."""

    def __init__(self, size: int) -> None:
        self.size = size

    def items(self) -> list[Any]:
        info = get_worker_info()
        worker, workers = (0, 1) if info is None else (info.id, info.num_workers)
        return list(range(worker, self.size, workers))


class Forgets(Items):
    """Has no state."""

    def __iter__(self) -> Iterator[Any]:
        return iter(self.items())


class KeepsPlace(Items):
    """Its passes go on at its place, which is the beginning after the end of a pass."""

    place = 0

    def __iter__(self) -> Iterator[Any]:
        items = self.items()
        while self.place < len(items):
            self.place += 1
            yield items[self.place - 1]
        self.place = 0

    def state_dict(self) -> State:
        return {"place": self.place}

    def load_state_dict(self, state: State) -> None:
        self.place = state["place"]


class SkipsOnce(KeepsPlace):
    """The pass after a state is loaded goes on there, all others are whole: like torchdata's."""

    skipped = 0

    def __iter__(self) -> Iterator[Any]:
        self.place, self.skipped = self.skipped, 0
        for item in self.items()[self.place :]:
            self.place += 1
            yield item

    def load_state_dict(self, state: State) -> None:
        self.skipped = state["place"]


class IteratorKeepsPlace(Items):
    """Its iterator has a state."""

    def __iter__(self) -> Iterator[Any]:
        return Cursor(self.items())


class MakesPlace(Items):
    """Its own iterator, which has no place before ``__iter__`` makes one."""

    def __iter__(self) -> MakesPlace:
        self.places = Cursor(self.items())
        return self

    def __next__(self) -> Any:
        return next(self.places)

    def state_dict(self) -> State:
        return self.places.state_dict()

    def load_state_dict(self, state: State) -> None:
        self.places.load_state_dict(state)


MAPS = {"list": Samples, "__getitems__": WholeBatches}
KINDS: dict[str, type[Items]] = {
    "no state": Forgets,
    "stateful": KeepsPlace,
    "stateful iterator": IteratorKeepsPlace,
    "skips once": SkipsOnce,
}
SAMPLERS: dict[str, Any] = {name: type(name, (kind, Indices), {}) for name, kind in KINDS.items()}
DATA: dict[str, Any] = {
    name: type(name, (kind, Shard), {})
    for name, kind in {**KINDS, "its own iterator": MakesPlace}.items()
}
COMMON = ("sequential", "distributed", *SAMPLERS)  # to both loaders
LAST, END = -2, -1


@dataclass(frozen=True)
class Batching:
    """The arguments that make batches, and the size of the dataset."""

    size: int = 7
    rows: int | None = 2
    drop_last: bool = False
    batch_sampler: bool = False  # whether a sampler of the user's gives whole batches
    every: int | None = 1

    def arguments(self) -> dict[str, Any]:
        drop_last = self.drop_last and self.rows is not None
        snapshots = {"snapshot_every_n_steps": self.every}
        return {"batch_size": self.rows, "drop_last": drop_last} | snapshots

    @property
    def ends_in_a_part(self) -> bool:
        """Whether the last batch tells that it is the last: it has fewer samples."""
        return bool(self.rows and self.size % self.rows and not self.drop_last)


@dataclass(frozen=True)
class MapStyle:
    """Makes loaders of a map-style dataset, each with objects of its own."""

    sampler: str
    batching: Batching = Batching()
    dataset: str = "list"

    def __call__(self, make_loader: MakeLoader) -> Any:
        return make_loader(MAPS[self.dataset](range(self.batching.size)), **self._arguments())

    def _arguments(self) -> dict[str, Any]:
        size, rows, arguments = self.batching.size, self.batching.rows, self.batching.arguments()
        if self.sampler == "distributed":
            return arguments | {"sampler": StatefulDistributedSampler(range(size), 2, 1)}
        if self.sampler in SAMPLERS and self.batching.batch_sampler:
            batches = SAMPLERS[self.sampler](size, rows or 1)
            return {"batch_sampler": batches, "snapshot_every_n_steps": self.batching.every}
        if self.sampler in SAMPLERS:
            return arguments | {"sampler": SAMPLERS[self.sampler](size)}
        return arguments


@dataclass(frozen=True)
class Stream:
    """Makes loaders of an iterable dataset, each with one of its own."""

    data: str
    batching: Batching = Batching()

    def __call__(self, make_loader: MakeLoader) -> Any:
        return make_loader(DATA[self.data](self.batching.size), **self.batching.arguments())


Build = Callable[..., Any]  # called with a maker of loaders


@dataclass(frozen=True)
class Stop:
    """When a state is saved."""

    epochs: int  # whole ones before
    taken: int | None  # calls of next() in the one that follows; None if it is not begun


@dataclass(frozen=True)
class Saved:
    """A state, and what the loader that it was saved of gave then."""

    state: Any
    epoch: int  # that goes on
    delivered: int  # batches of it
    after: list[list[Any]]  # its rest, and the next epoch

    @property
    def between(self) -> bool:
        """Whether one epoch has ended, and nothing of the next was delivered."""
        return self.epoch > 0 and self.delivered == 0

    @property
    def complete(self) -> bool:
        """Whether all was delivered, but the end not asked for."""
        return self.delivered > 0 and not self.after[0]


def begin(loader: Any, epoch: int) -> Iterator[Any]:
    for sampler in (loader.sampler, loader.batch_sampler):
        if hasattr(sampler, "set_epoch"):
            sampler.set_epoch(epoch)
    return iter(loader)


def lists(batches: Iterable[Any]) -> list[Any]:
    return [batch.tolist() if hasattr(batch, "tolist") else batch for batch in batches]


def epochs(loader: Any, first: int, number: int = 2) -> list[list[Any]]:
    return [lists(begin(loader, epoch)) for epoch in range(first, first + number)]


def save(make_loader: MakeLoader, build: Build, stop: Stop) -> Saved:
    taken = stop.taken or 0
    if taken < 0:
        taken += len(epochs(build(make_loader), 0, 1)[0]) - LAST
    loader = build(make_loader)
    epochs(loader, 0, stop.epochs)
    if stop.taken is None:
        state = json.dumps(loader.state_dict())
        return Saved(json.loads(state), stop.epochs, 0, epochs(loader, stop.epochs))
    iterator = begin(loader, stop.epochs)
    delivered = len(list(islice(iterator, taken)))
    state = json.dumps(loader.state_dict())
    if delivered < taken:
        return Saved(json.loads(state), stop.epochs + 1, 0, epochs(loader, stop.epochs + 1))
    after = [lists(iterator), *epochs(loader, stop.epochs + 1, 1)]
    return Saved(json.loads(state), stop.epochs, delivered, after)


def resume(make_loader: MakeLoader, build: Build, saved: Saved) -> list[list[Any]]:
    loader = build(make_loader)
    loader.load_state_dict(saved.state)
    return epochs(loader, saved.epoch)


def save_and_resume(make_loader: MakeLoader, build: Build, stop: Stop) -> list[list[Any]]:
    return resume(make_loader, build, save(make_loader, build, stop))
