"""A pass over a sampler begins at any batch, and objects of the user's go back to their states."""

from __future__ import annotations

import json
import random
from itertools import pairwise
from operator import attrgetter
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from support.patience import PATIENCE
from support.resuming import after, state_after

from threadloader import StateError, ThreadLoader
from threadloader._order.known_pass import KnownPass
from threadloader._order.known_samplers import known
from threadloader._order.sampler_pass import open_pass
from threadloader._order.samplers import (
    BatchSampler,
    KeyedSampler,
    RandomSampler,
    SequentialSampler,
)
from threadloader._order.user_pass import UserPass
from threadloader._resume.checkpoint import Checkpoint
from threadloader._resume.position import Lane, Position
from threadloader._resume.stateful import restore_whole
from threadloader._rng.seeds import Seeds

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from support.patience import Spawn

each_number_of_threads = pytest.mark.parametrize("threads", [0, 2])
each_number_of_steps = pytest.mark.parametrize("steps", [1, 3, None])


def sequential() -> Any:
    return SequentialSampler(range(11))


def at_random() -> Any:
    return RandomSampler(range(11), np.random.default_rng(1))


def keyed() -> Any:
    return KeyedSampler(range(3000), np.random.default_rng(1))


def starting_at(sampler: Any, batches: int) -> Iterator[Any]:
    adapter = known(sampler)
    assert adapter is not None
    return adapter.starting_at(batches)


@pytest.mark.parametrize("made", [sequential, at_random, keyed])
@pytest.mark.parametrize("position", [0, 1, 7, 11, 2000, 4000])
def test_a_known_sampler_begins_anywhere(made: Callable[[], Any], position: int) -> None:
    assert list(starting_at(made(), position)) == list(made())[position:]


@pytest.mark.parametrize("made", [sequential, at_random, keyed])
@pytest.mark.parametrize("drop_last", [False, True])
@pytest.mark.parametrize("batches", [0, 1, 3, 4, 999, 1001])
def test_a_known_batch_sampler_begins_anywhere(
    made: Callable[[], Any], drop_last: bool, batches: int
) -> None:
    def batching() -> BatchSampler:
        return BatchSampler(made(), 3, drop_last)

    assert list(starting_at(batching(), batches)) == list(batching())[batches:]


class Endless:
    def __len__(self) -> int:
        return 10**12

    def __getitem__(self, index: int) -> int:
        return index


@pytest.mark.parametrize("kind", [SequentialSampler, KeyedSampler])
def test_what_is_left_out_of_a_known_order_is_not_computed(kind: Any) -> None:
    sampler = BatchSampler(kind(Endless()), 1000, drop_last=False)
    assert len(next(starting_at(sampler, 10**8))) == 1000


def test_a_lane_counts_what_was_delivered_without_a_gap() -> None:
    lane = Lane()
    checkpoints = [Checkpoint(number + 1, 0, {"sampler": number}) for number in range(4)]
    for number, batches, ahead in [(1, 0, [1]), (3, 0, [1, 3]), (0, 2, [3]), (2, 4, [])]:
        lane.delivered(number, checkpoints[number])
        assert (lane.batches, sorted(lane.ahead)) == (batches, ahead)
        assert lane.checkpoint == (checkpoints[batches - 1] if batches else None)


@pytest.mark.parametrize(
    "lane",
    [
        Lane(),
        Lane(5),
        Lane(5, total=5),
        Lane(5, check=(4, 77), length=9),
        Lane(5, checkpoint=Checkpoint(3, 9, {"sampler": {"at": [1]}})),
        Lane(5, checkpoint=Checkpoint(5, 9, {"self": 3}, ended=True)),
        Lane(0, first=Checkpoint(0, 0, {"sampler": 3}, between_passes=True)),
        Lane(5, ahead={7: None, 9: None}),
    ],
)
def test_a_lane_goes_through_json(lane: Lane) -> None:
    same = Lane.of(json.loads(json.dumps(lane.state())))
    fields = attrgetter(*Lane.__slots__)
    assert fields(same) == fields(lane)


def test_a_lane_s_state_is_its_own() -> None:
    at = [1]
    state = Lane(1, checkpoint=Checkpoint(1, 1, {"sampler": at})).state()
    at.append(2)
    assert state["mark"]["states"] == {"sampler": [1]}


def test_a_batch_ahead_that_is_drawn_again_has_its_mark_in_its_turn() -> None:
    lane = Lane.of({"batches": 1, "ahead": "0x2"})
    lane.drawn_again(2, 9)
    assert lane.check is None
    lane.delivered(1, 8)
    assert (lane.batches, lane.check) == (3, (3, 9))


def test_a_lane_has_ended_when_all_that_there_are_were_delivered() -> None:
    lane = Lane()
    lane.delivered(1, None)
    lane.ends(2, None)
    assert not lane.ended
    assert "ended" not in lane.state()
    lane.delivered(0, None)
    assert lane.ended
    assert Lane.of(lane.state()).ended


class AtTheEnd:
    """An iterable that was saved at its end; what it does then is one of three things."""

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self.at = 0

    def __iter__(self) -> Iterator[int]:
        start, self.at = self.at, 0
        if start == 3 and self.kind == "rewinds":
            start = 0
        if self.kind == "stays":
            self.at = start
        return iter(range(start, 3))

    def state_dict(self) -> dict[str, int]:
        return {"at": self.at}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.at = state["at"]


@pytest.mark.parametrize("kind", ["rewinds", "one empty pass", "stays"])
@pytest.mark.parametrize("at", [0, 3])
def test_after_a_state_between_two_passes_the_next_is_whole(kind: str, at: int) -> None:
    iterable = AtTheEnd(kind)
    restore_whole("sampler", iterable, {"at": at})
    assert list(iterable) == [0, 1, 2]


def test_what_has_no_state_is_not_restored() -> None:
    with pytest.raises(StateError, match="one of the sampler, but list has no state_dict"):
        restore_whole("sampler", [1, 2], {"at": 0})


def opened(sampler: Any, lane: Lane | None = None) -> Any:
    draws = Seeds().begin_epoch(7, None, None)
    position = Position(0, [lane or Lane()], saved=None if lane is None else {})
    return open_pass(sampler, draws, snapshot_every=1, position=position)


def test_a_known_sampler_says_all_by_how_far_it_got() -> None:
    begun = opened(BatchSampler(sequential(), 3, drop_last=False), Lane(2))
    assert isinstance(begun, KnownPass)
    assert (begun.batches, begun.samples, begun.checkpoint(3, 9, [6])) == (2, 6, None)
    assert begun.order is not None
    assert begun.order.state() is None
    assert next(iter(begun)) == [6, 7, 8]


def test_any_other_sampler_is_drawn_from_its_beginning() -> None:
    user = opened([[4], [2, 3]], Lane(1))
    assert isinstance(user, UserPass)
    assert (user.batches, next(iter(user)), user.order) == (0, [4], None)


def test_the_check_tells_orders_apart() -> None:
    def checks(order: list[list[Any]]) -> list[Any]:
        user = opened(order)
        return [user.checkpoint(number + 1, 0, next(iter(user))) for number in range(len(order))]

    one = checks([[1, 2], [3, 4]])
    assert one == checks([[1, 2], [3, 4]])
    assert all(checkpoint != other for checkpoint, other in pairwise(one))
    for other in ([[2, 1], [3, 4]], [[3, 4], [1, 2]], [[0, 2], [3, 4]], [[1, 3, 2], [4]]):
        assert checks(other)[-1] != one[-1]
    assert checks([["a"], ["b"]])[-1] != checks([["b"], ["a"]])[-1]
    assert checks([[(1, "a")], [(2, "b")]])[-1] != checks([[(1, "b")], [(2, "a")]])[-1]
    assert checks([[object()], [object()]]) == [None, None]


class Shuffling:
    """A sampler with a random state of its own; at its end it makes the next order."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.drawn = 0
        self.rng = random.Random(5)
        self.state: dict[str, Any] = {"at": 0, "order": []}
        self.reorder()

    def reorder(self) -> None:
        self.state["order"][:] = self.rng.sample(range(self.size), self.size)
        self.state["at"] = 0

    def __len__(self) -> int:
        return self.size

    def __iter__(self) -> Iterator[Any]:
        while self.state["at"] < self.size:
            self.state["at"] += 1
            self.drawn += 1
            yield self.state["order"][self.state["at"] - 1]
        self.reorder()

    def state_dict(self) -> Any:
        kind, words, rest = self.rng.getstate()
        self.state["rng"] = [kind, list(words), rest]
        return self.state

    def load_state_dict(self, state: Any) -> None:
        self.state = state
        kind, words, rest = state["rng"]
        self.rng.setstate((kind, tuple(words), rest))


class Batching(Shuffling):
    """The same, of batches."""

    def __iter__(self) -> Iterator[Any]:
        return ([index] for index in super().__iter__())


class Drawing:
    """An iterator over indices that has a state."""

    def __init__(self, size: int) -> None:
        self.rest = list(range(size))

    def __iter__(self) -> Drawing:
        return self

    def __next__(self) -> int:
        if not self.rest:
            raise StopIteration
        return self.rest.pop()

    def state_dict(self) -> Any:
        return {"rest": self.rest}

    def load_state_dict(self, state: Any) -> None:
        self.rest = state["rest"]


class Drawn:
    """A sampler whose iterators have a state."""

    def __init__(self, size: int) -> None:
        self.size = size

    def __len__(self) -> int:
        return self.size

    def __iter__(self) -> Drawing:
        return Drawing(self.size)


def make(sampler: Any, threads: int = 2, **arguments: Any) -> ThreadLoader[Any]:
    if isinstance(sampler, (Batching, Stumbling)):
        arguments |= {"batch_sampler": sampler, "batch_size": 1}
    else:
        arguments |= {"sampler": sampler}
    defaults: dict[str, Any] = {
        "batch_size": 3,
        "output": "numpy",
        "collate_fn": list,
        "prefetch": 16,
    }
    return ThreadLoader(range(20), threads=threads, **(defaults | arguments))


def check_each_state(made: Callable[[], ThreadLoader[Any]]) -> None:
    """Resume from each state of three epochs, and compare that with what followed it."""
    batches: list[Any] = []
    states: list[Any] = []
    with made() as loader:
        for epoch in range(3):
            batches.append([])
            iterator = iter(loader)
            states.append((epoch, 0, json.dumps(loader.state_dict())))
            for batch in iterator:
                batches[-1].append(batch)
                states.append((epoch, len(batches[-1]), json.dumps(loader.state_dict())))
            states.append((epoch + 1, 0, json.dumps(loader.state_dict())))
    wrong = []
    for epoch, delivered, state in states[:-1]:
        rest = [batches[epoch][delivered:], *batches[epoch + 1 :]]
        if after(made(), json.loads(state), len(rest)) != rest:
            wrong.append((epoch, delivered))
    assert not wrong


@pytest.mark.parametrize("kind", [Shuffling, Batching, Drawn])
@pytest.mark.parametrize("size", [9, 10])
@each_number_of_steps
@each_number_of_threads
def test_a_sampler_with_a_state_goes_on_from_every_batch(
    kind: Any, size: int, steps: int | None, threads: int, spawn: Spawn
) -> None:
    def made() -> ThreadLoader[Any]:
        return make(kind(size), threads, snapshot_every_n_steps=steps)

    spawn(check_each_state, made).result(PATIENCE)


@each_number_of_threads
def test_a_known_sampler_s_own_generator_goes_on(threads: int, spawn: Spawn) -> None:
    spawn(check_each_state, lambda: make(at_random(), threads)).result(PATIENCE)


@pytest.mark.parametrize("delivered", [1, 2])
@each_number_of_threads
def test_a_sampler_with_a_state_is_that_of_the_batch_delivered(
    delivered: int, threads: int, spawn: Spawn
) -> None:
    state = spawn(state_after, make(Shuffling(9), threads), delivered).result(PATIENCE)
    assert state["lanes"][0]["mark"]["states"]["sampler"]["at"] == 3 * delivered
    sampler = Shuffling(9)
    spawn(after, make(sampler, threads), state).result(PATIENCE)
    assert sampler.drawn == 9 - 3 * delivered


class Staged:
    """A map-style dataset with a state of its own."""

    def __init__(self) -> None:
        self.stage = {"number": [0]}

    def __len__(self) -> int:
        return 6

    def __getitem__(self, index: int) -> int:
        return 100 * self.stage["number"][0] + index

    def state_dict(self) -> Any:
        return self.stage

    def load_state_dict(self, state: Any) -> None:
        self.stage = state


@each_number_of_threads
def test_a_map_style_dataset_goes_back_to_its_state(threads: int, spawn: Spawn) -> None:
    data = Staged()
    data.stage["number"][0] = 2
    with ThreadLoader(data, 2, threads=threads, output="numpy", collate_fn=list) as loader:
        iterator = iter(loader)
        assert spawn(next, iterator).result(PATIENCE) == [200, 201]
        state = loader.state_dict()
    data.stage["number"][0] = 3
    resumed = ThreadLoader(Staged(), 2, threads=threads, output="numpy", collate_fn=list)
    assert spawn(after, resumed, state).result(PATIENCE) == [[[202, 203], [204, 205]]]


class Unseeded(list[int]):
    """Another order each time that it is iterated."""

    def __iter__(self) -> Iterator[int]:
        self.append(self.pop(0))
        return super().__iter__()


class Stumbling:
    """A batch sampler whose iterator raises once in the middle, and can go on."""

    def __init__(self) -> None:
        self.entries: list[list[int]] = []

    def __iter__(self) -> Stumbling:
        self.entries = [[0], [1], [], [2], [3]]
        return self

    def __next__(self) -> list[int]:
        if not self.entries:
            raise StopIteration
        entry = self.entries.pop(0)
        if not entry:
            raise LookupError("stumbled")
        return entry


@each_number_of_threads
def test_a_sampler_with_another_order_is_refused(threads: int, spawn: Spawn) -> None:
    sampler = Unseeded(list(range(9)))
    state = spawn(state_after, make(sampler, threads), 2).result(PATIENCE)
    loader = make(sampler, threads)
    with pytest.raises(StateError, match=r"gives other indices \(batches 1 to 2\)"):
        spawn(after, loader, state).result(PATIENCE)
    loader.close()


class Lengthless(list[int]):
    """Has no length, so that only drawing tells."""

    __len__ = None  # type: ignore[assignment]


@each_number_of_threads
def test_a_sampler_that_became_shorter_is_refused(threads: int, spawn: Spawn) -> None:
    loader = make(Lengthless(range(9)), threads)
    state = spawn(state_after, loader, 2).result(PATIENCE)
    shorter = make(Lengthless(range(3)), threads)
    with pytest.raises(StateError, match="ended after batch 1, but 2 were delivered"):
        spawn(after, shorter, state).result(PATIENCE)


def outcomes(iterator: Iterator[Any], calls: int) -> list[Any]:
    got: list[Any] = []
    for _ in range(calls):
        try:
            got.append(next(iterator))
        except LookupError as error:
            got.append(str(error))
    return got


@each_number_of_threads
@pytest.mark.parametrize("calls", [0, 1, 2, 3, 4, 5])
def test_an_error_of_the_sampler_s_comes_in_its_place_and_not_again(
    calls: int, threads: int, spawn: Spawn
) -> None:
    def make_one() -> ThreadLoader[Any]:
        return make(Stumbling(), threads)

    expected = [[0], [1], "stumbled", [2], [3]]
    with make_one() as loader:
        got = spawn(outcomes, iter(loader), calls).result(PATIENCE)
        assert got == expected[:calls]
        state = json.loads(json.dumps(loader.state_dict()))
    with make_one() as loader:
        loader.load_state_dict(state)
        iterator = spawn(iter, loader).result(PATIENCE)
        # Right after it, it may come once more: it is between two batches.
        rest = expected[2 if calls == 3 else calls :]
        assert spawn(outcomes, iterator, len(rest)).result(PATIENCE) == rest
