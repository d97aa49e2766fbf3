"""A fresh loader that loads a state delivers the rest of the epoch: iterables, and samplers."""

from __future__ import annotations

import importlib.util
import random
from collections.abc import Iterator
from itertools import islice
from typing import Any

import pytest
from support.patience import PATIENCE, Spawn
from support.resuming import after, as_json, check_each_state, state_after, told
from support.streams import Hiccups, Rows, lists, make, outcomes

from threadloader import StateError, ThreadLoader, get_worker_info, sample_rng

HAS_TORCH = importlib.util.find_spec("torch") is not None
pytestmark = pytest.mark.filterwarnings(
    "ignore:.*is read again",
    "ignore:nothing was left to load",  # of one that stays at its end
)

each_number_of_threads = pytest.mark.parametrize("threads", [0, 1])
# Steps between states of the user's, and threads.
WAYS = [(1, 0), (3, 1), (0, 1)]
each_way = pytest.mark.parametrize(("steps", "threads"), WAYS)


class Counter:
    """Rows from 0, and the number of the pass; its state is one dict, which goes on changing."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.read: list[int] = []
        self.state: dict[str, Any] = {"at": 0, "passes": [0]}

    def state_dict(self) -> Any:
        return self.state

    def load_state_dict(self, state: Any) -> None:
        assert self.state is not state
        self.state = state

    def step(self) -> int:
        row: int = self.state["at"]
        if row == self.size:
            raise StopIteration
        self.state["at"] += 1
        self.read.append(row)
        return row + 100 * int(self.state["passes"][0])

    def rewind(self) -> None:
        self.state["at"] = 0
        self.state["passes"][0] += 1


class OnDataset(Counter):
    """An iterable whose own state tells where it is; at its end it goes back to its beginning."""

    def __iter__(self) -> Iterator[int]:
        while self.state["at"] < self.size:
            yield self.step()
        self.rewind()


class Itself(Counter):
    """An iterable that is its own iterator; to iterate over it goes back to its beginning."""

    def __iter__(self) -> Itself:
        self.rewind()
        return self

    def __next__(self) -> int:
        return self.step()


class Stays(Itself):
    """Its own iterator, which has one pass: it stays at its end."""

    def __iter__(self) -> Stays:
        return self


class OnIterator:
    """An iterable whose iterators have a state; they stay at their end."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.read: list[int] = []

    def __iter__(self) -> Stays:
        iterator = Stays(self.size)
        iterator.read = self.read
        return iterator


class Remade(Counter):
    """Its own iterator, which has no place and no state before ``__iter__`` makes one."""

    def __init__(self, size: int) -> None:
        super().__init__(size)
        del self.state

    def __iter__(self) -> Remade:
        self.state = {"at": 0, "passes": [0]}
        return self

    def __next__(self) -> int:
        return self.step()

    def load_state_dict(self, state: Any) -> None:
        self.state.update(state)


class Waits(Remade):
    """Its own iterator, whose ``__iter__`` goes to the place that was loaded, like litdata's."""

    waiting: Any = None

    def __iter__(self) -> Waits:
        self.state = self.waiting or {"at": 0, "passes": [0]}
        self.waiting = None
        return self

    def load_state_dict(self, state: Any) -> None:
        self.waiting = state


class CountsPasses:
    """Its state is the pass, which ``__iter__`` counts; the place is its iterator's."""

    passes = 0

    def __init__(self, size: int) -> None:
        self.size = size

    def __iter__(self) -> Itself:
        iterator = Itself(self.size)
        iterator.state["passes"][0] = self.passes
        self.passes += 1
        return iter(iterator)

    def state_dict(self) -> Any:
        return {"passes": self.passes - 1}  # of the pass that was begun

    def load_state_dict(self, state: Any) -> None:
        self.passes = state["passes"]


class Prepares:
    """Begins a pass to tell its state, and has the next ``__iter__`` return it.

    So does torchdata's ``nodes.Loader``.
    """

    prepared = False

    def __init__(self, size: int) -> None:
        self.size = size
        self.counter: Any = None
        self.waiting: Any = None

    def __iter__(self) -> Iterator[int]:
        if not self.prepared:
            self.counter = Itself(self.size)
            iter(self.counter)
            if self.waiting is not None:
                self.counter.load_state_dict(self.waiting)
            if self.counter.state["at"] == self.size:
                self.counter.state["at"] = 0
            self.waiting = None
        self.prepared = False
        return (row for row in _steps(self.counter))

    def state_dict(self) -> Any:
        if self.counter is None:
            iter(self)
            self.prepared = True
        return self.counter.state_dict()

    def load_state_dict(self, state: Any) -> None:
        self.waiting = state


def _steps(counter: Counter) -> Iterator[int]:
    while counter.state["at"] < counter.size:
        yield counter.step()


class NeedsArguments(Rows):
    """Its methods are for a loader of its own, like those of litdata's ``StreamingDataset``."""

    def state_dict(self, yielded: int) -> Any:
        return {"yielded": yielded}

    def load_state_dict(self, state: Any) -> None:
        raise AssertionError(state)


KINDS = [OnDataset, OnIterator, Itself, Remade, Waits, Stays, CountsPasses, Prepares]
KINDS += [NeedsArguments]


@pytest.mark.parametrize(
    ("kind", "steps", "threads", "arguments"),
    [
        *((kind, *way, {}) for kind in KINDS for way in WAYS),
        *(
            (kind, 3, 1, arguments)
            for kind in (OnDataset, OnIterator, Itself)
            for arguments in (
                *({"persistent_workers": True}, {"transform": int}, {"batch_size": None}),
                *({"drop_last": True}, {"prefetch": 1}, {"snapshot_every_n_steps": 0}),
            )
        ),
    ],
)
def test_from_every_state_the_rest_and_all_later_epochs_are_the_same(
    kind: Any, steps: int, threads: int, arguments: dict[str, Any], spawn: Spawn
) -> None:
    arguments = {"prefetch": 16, "threads": threads, "snapshot_every_n_steps": steps} | arguments

    def made() -> ThreadLoader[Any]:
        return make(kind(8), **arguments)

    spawn(check_each_state, made).result(PATIENCE)


class OfBatches(OnDataset):
    """The same, and each is a batch."""

    def __iter__(self) -> Iterator[Any]:
        return ([row] for row in super().__iter__())


def sampled(sampler: Any, threads: int, steps: int = 1) -> ThreadLoader[Any]:
    arguments: dict[str, Any] = {"sampler": sampler}
    if isinstance(sampler, OfBatches):
        arguments = {"batch_sampler": sampler, "batch_size": 1}
    arguments |= {"prefetch": 16, "snapshot_every_n_steps": steps or None, "threads": threads}
    return make(range(1000), **arguments)


@pytest.mark.parametrize("kind", [OnDataset, OfBatches, OnIterator])
@pytest.mark.parametrize("size", [8, 9])
@each_way
def test_a_sampler_with_a_state_goes_on_from_every_batch(
    kind: Any, size: int, steps: int, threads: int, spawn: Spawn
) -> None:
    spawn(check_each_state, lambda: sampled(kind(size), threads, steps)).result(PATIENCE)


@each_number_of_threads
def test_a_state_that_can_t_be_told_raises_after_the_first_batch(
    threads: int, spawn: Spawn
) -> None:
    class Fails(Remade):
        def state_dict(self) -> Any:
            raise LookupError("no state")

    with make(Fails(8), threads=threads) as loader:
        iterator = iter(loader)
        with pytest.raises(LookupError, match="no state"):
            spawn(next, iterator).result(PATIENCE)


@each_number_of_threads
def test_an_iterable_without_a_state_is_read_again_up_to_there(threads: int, spawn: Spawn) -> None:
    class Drawing(Rows):
        def __iter__(self) -> Iterator[float]:
            return (row + random.random() for row in range(self.size))

    def made() -> ThreadLoader[Any]:
        return make(Drawing(11), threads=threads, seed=3)

    spawn(check_each_state, made).result(PATIENCE)
    state = spawn(state_after, made(), 2).result(PATIENCE)
    with made() as loader:
        loader.load_state_dict(state)
        message = r"is read again, to be left out \(batches: 2\)"
        with pytest.warns(UserWarning, match=message) as caught:
            iterator = iter(loader)
        assert [warning.filename for warning in caught] == [__file__]
        rest = spawn(lists, iterator).result(PATIENCE)
    assert [[int(row) for row in batch] for batch in rest] == [[6, 7, 8], [9, 10]]


@pytest.mark.parametrize(("steps", "marks"), [(1, [1, 2, 3, 4]), (3, [1, 1, 3, 4]), (0, [0] * 3)])
@each_number_of_threads
def test_a_state_of_the_dataset_is_asked_for_every_so_many_batches(
    steps: int, marks: list[int], threads: int, spawn: Spawn
) -> None:
    loader = make(OnDataset(11), threads=threads, snapshot_every_n_steps=steps)
    _, states = spawn(told, loader, 1).result(PATIENCE)
    lanes = [state["lanes"][0] for _, delivered, state in states if delivered]
    saved = [lane.get("mark", {"batches": 0})["batches"] for lane in lanes]
    assert saved[: len(marks)] == marks


def transformed(row: int) -> list[float]:
    return [row, random.random(), float(sample_rng().random())]


@pytest.mark.parametrize("kind", [OnDataset, OnIterator, Rows, Remade])
@pytest.mark.parametrize(("saving", "resuming"), [(0, 7), (3, 0)])
def test_a_transform_draws_what_it_would_have(
    kind: Any, saving: int, resuming: int, spawn: Spawn
) -> None:
    def made(threads: int) -> ThreadLoader[Any]:
        arguments: dict[str, Any] = {"seed": 5, "prefetch": 16, "collate_fn": list}
        return make(kind(11), threads=threads, transform=transformed, **arguments)

    check = check_each_state
    spawn(check, lambda: made(saving), lambda: made(resuming)).result(PATIENCE)


@each_number_of_threads
def test_an_iterable_that_became_shorter_is_refused(threads: int, spawn: Spawn) -> None:
    state = spawn(state_after, make(Rows(11), threads=threads), 3).result(PATIENCE)
    with make(Rows(4), threads=threads) as loader:
        loader.load_state_dict(state)
        with pytest.warns(UserWarning, match=r"batches: 3\)"):
            iterator = iter(loader)
        with pytest.raises(StateError, match="ended after 2 batches, but 3 were delivered"):
            spawn(next, iterator).result(PATIENCE)


@each_number_of_threads
@pytest.mark.parametrize("delivered", [1, 2, 3])
def test_a_batch_that_could_not_be_read_counts_once_the_consumer_goes_on(
    delivered: int, threads: int, spawn: Spawn
) -> None:
    def made() -> ThreadLoader[Any]:
        return make(Hiccups(10, {4}), threads=threads, dataset_copy="shared")

    def save() -> Any:
        with made() as loader:
            iterator = iter(loader)
            for _ in range(delivered):
                try:
                    next(iterator)
                except LookupError:
                    continue
            return as_json(loader.state_dict())

    expected = [str(told) for told in spawn(outcomes, made()).result(PATIENCE)]
    state = spawn(save).result(PATIENCE)
    loader = made()
    loader.load_state_dict(state)
    counted = 1 if delivered == 2 else delivered
    with pytest.warns(UserWarning, match=rf"batches: {counted}\)"):
        rest = outcomes(loader)
    assert [str(told) for told in rest] == expected[counted:]


@pytest.mark.parametrize("role", ["dataset", "iterator"])
def test_a_state_of_what_has_none_any_more_is_refused(role: str, spawn: Spawn) -> None:
    kind, other = {"dataset": (OnDataset, OnIterator), "iterator": (OnIterator, OnDataset)}[role]
    state = spawn(state_after, make(kind(11), threads=1), 1).result(PATIENCE)
    state["loader"]["dataset"] = other.__name__
    with make(other(11), threads=1) as loader, pytest.raises(StateError, match="no state_dict"):
        spawn(after, loader, state).result(PATIENCE)


if HAS_TORCH:
    from torch.utils.data import IterableDataset

    class Shard(IterableDataset[int]):
        """Every so many-th row is a worker's, from a state of its own; else without one."""

        def __init__(self, size: int = 22) -> None:
            self.size = size

        def __iter__(self) -> Iterator[int]:
            info = get_worker_info()
            number, workers = (0, 1) if info is None else (info.id, info.num_workers)
            return islice(self.rows(), number, None, workers)

        def rows(self) -> Iterator[int]:
            return iter(range(self.size))

    class StatefulShard(Shard):
        """Each replica counts what it gave."""

        at = 0

        def __iter__(self) -> Iterator[int]:
            for row in islice(super().__iter__(), self.at, None):
                self.at += 1
                yield row
            self.at = 0

        def state_dict(self) -> dict[str, int]:
            return {"at": self.at}

        def load_state_dict(self, state: dict[str, int]) -> None:
            self.at = state["at"]

    @pytest.mark.parametrize("kind", [Shard, StatefulShard])
    @pytest.mark.parametrize(
        ("steps", "threads", "persistent"),
        [(3, 0, False), (1, 3, False), (3, 2, True), (0, 2, False), (0, 3, True)],
    )
    def test_replicas_go_on_in_their_turns(
        kind: Any, steps: int | None, threads: int, persistent: bool, spawn: Spawn
    ) -> None:
        arguments = {"prefetch": 16, "persistent_workers": persistent}

        def made() -> ThreadLoader[Any]:
            return make(kind(), threads=threads, snapshot_every_n_steps=steps, **arguments)

        spawn(check_each_state, made).result(PATIENCE)

    def test_another_number_of_replicas_is_refused(spawn: Spawn) -> None:
        state = spawn(state_after, make(Shard(), threads=2), 3).result(PATIENCE)
        with make(Shard(), threads=3) as loader:
            loader.load_state_dict(state)
            with pytest.raises(StateError, match=r"2 replicas .*there are 3 now"):
                iter(loader)

    @pytest.mark.parametrize("delivered", [0, 1, 4, 8])
    def test_replicas_out_of_order_give_each_row_once(delivered: int, spawn: Spawn) -> None:
        def made() -> ThreadLoader[Any]:
            return make(StatefulShard(), threads=3, in_order=False)

        def first() -> Any:
            with made() as loader:
                rows = [row for batch in islice(loader, delivered) for row in batch.tolist()]
                return rows, as_json(loader.state_dict())

        rows, state = spawn(first).result(PATIENCE)
        (rest,) = spawn(after, made(), state).result(PATIENCE)
        assert sorted(rows + [row for batch in rest for row in batch]) == list(range(22))
