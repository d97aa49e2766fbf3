"""A pass over a sampler begins at any batch, and objects of the user's go back to their states."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from support.acting import Acting
from support.patience import PATIENCE, Spawn
from support.resuming import after, check_each_state, state_after

from threadloader import StateError, ThreadLoader
from threadloader._order.samplers import RandomSampler

each_number_of_threads = pytest.mark.parametrize("threads", [0, 2])


def make(sampler: Any, threads: int = 2, **arguments: Any) -> ThreadLoader[Any]:
    if isinstance(sampler, Stumbling):
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


@each_number_of_threads
def test_a_known_sampler_s_own_generator_goes_on(threads: int, spawn: Spawn) -> None:
    spawn(
        check_each_state, lambda: make(RandomSampler(range(11), np.random.default_rng(1)), threads)
    ).result(PATIENCE)


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


class AtTheEnd:
    """A sampler that was saved at its end; what it does then is one of three things."""

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
@each_number_of_threads
def test_after_a_state_between_two_passes_the_next_is_whole(
    kind: str, at: int, threads: int, spawn: Spawn
) -> None:
    state = make(AtTheEnd(kind), threads).state_dict()
    state["lanes"][0]["mark"]["states"]["sampler"]["at"] = at
    assert spawn(after, make(AtTheEnd(kind), threads), state).result(PATIENCE) == [[[0, 1, 2]]]


def test_what_has_no_state_is_not_restored(spawn: Spawn) -> None:
    state = make(AtTheEnd("stays")).state_dict()
    state["loader"]["sampler"] = "list"
    with pytest.raises(StateError, match="one of the sampler, but list has no state_dict"):
        spawn(after, make([1, 2, 3]), state).result(PATIENCE)


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


@pytest.mark.parametrize(
    ("order", "other", "refused"),
    [
        ([[1, 2], [3, 4]], [[1, 2], [3, 4]], False),
        ([[1, 2], [3, 4]], [[2, 1], [3, 4]], True),
        ([[1, 2], [3, 4]], [[3, 4], [1, 2]], True),
        ([[1, 2], [3, 4]], [[0, 2], [3, 4]], True),
        ([[1, 2], [3, 4]], [[1, 3, 2], [4]], True),
        ([["a"], ["b"]], [["b"], ["a"]], True),
        ([[(1, "a")], [(2, "b")]], [[(1, "b")], [(2, "a")]], True),
        ([[object()], [object()]], [[1], [2]], False),  # nobody can tell
        ([[1], [object()]], [[1], [object()]], False),  # nor from there on
    ],
)
@each_number_of_threads
def test_a_sampler_with_another_order_is_refused(
    order: list[Any], other: list[Any], refused: bool, threads: int, spawn: Spawn
) -> None:
    def made(order: list[Any]) -> ThreadLoader[Any]:
        return ThreadLoader(
            Acting(9, repr, lambda _: 5),
            batch_sampler=[*order, [0]],
            threads=threads,
            collate_fn=list,
        )

    state = spawn(state_after, made(order), 2).result(PATIENCE)
    if not refused:
        assert spawn(after, made(other), state).result(PATIENCE) == [[[5]]]
        return
    with pytest.raises(StateError, match=r"gives other indices \(batches 1 to 2\)"):
        spawn(after, made(other), state).result(PATIENCE)


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
def test_an_error_of_the_sampler_s_comes_in_its_place_and_once_when_it_is_drawn_again(
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
        # A batch after it, it comes once more, as the batches before are drawn again.
        again = ["stumbled"] * (calls > 2)
        rest = [*again, *expected[calls:]]
        assert spawn(outcomes, iterator, len(rest)).result(PATIENCE) == rest
