"""A DistributedSampler of the user's: its share is respected, each rank draws its own numbers."""

from __future__ import annotations

import json
import random
import warnings
from collections.abc import Callable, Iterator
from itertools import product
from typing import Any

import pytest
from support.acting import Acting

from threadloader import ThreadLoader

data = pytest.importorskip("torch.utils.data")


DRAWING = Acting(24, sample=lambda index: (index, random.random()))


def sampler_of(rank: int, **options: Any) -> Any:
    return data.DistributedSampler(DRAWING, num_replicas=2, rank=rank, **options)


def told_of(epoch: int) -> Any:
    sampler = sampler_of(0)
    sampler.set_epoch(epoch)
    return sampler


def loader_of(rank: int, **options: Any) -> ThreadLoader[Any]:
    sampler = options.pop("sampler", None) or sampler_of(rank)
    return ThreadLoader(
        DRAWING, 4, sampler=sampler, output="numpy", **{"seed": 3, "threads": 0, **options}
    )


def numbers(loader: ThreadLoader[Any]) -> list[float]:
    return [number for batch in loader for number in batch[1].tolist()]


def indices(loader: ThreadLoader[Any]) -> list[int]:
    return [index for batch in loader for index in batch[0].tolist()]


@pytest.fixture
def strict() -> Iterator[None]:
    """Let any warning be an error."""
    with warnings.catch_warnings(action="error"):
        yield


def test_two_ranks_with_one_seed_draw_different_numbers_the_first_those_of_one_process() -> None:
    first, second = (numbers(loader_of(rank)) for rank in range(2))
    assert not {*first} & {*second}
    for threads in (0, 2):
        assert second == numbers(loader_of(1, threads=threads))
    alone = ThreadLoader(DRAWING, 4, seed=3, output="numpy", threads=0)
    assert first == numbers(alone)[:12]


def test_the_state_of_one_rank_is_good_for_all() -> None:
    states, rests = [], []
    for rank in range(2):
        state, rest = stopped(loader_of(rank, sampler=(told := sampler_of(rank))), told, 2)
        states.append(state)
        rests.append(rest)
    assert states[0] == states[1]
    assert [indices(resumed(states[0], sampler_of(rank))) for rank in range(2)] == rests


def test_who_forgets_set_epoch_gets_the_same_order_as_with_torch_and_a_warning() -> None:
    loader = loader_of(0)
    first = indices(loader)
    with pytest.warns(UserWarning, match="has the same order") as caught:
        assert indices(loader) == first
    assert caught[0].filename == __file__


@pytest.mark.usefixtures("strict")
def test_who_calls_set_epoch_or_does_not_shuffle_is_left_alone() -> None:
    sampler = sampler_of(0)
    before = dict(vars(sampler))
    loader = loader_of(0, sampler=sampler)
    next(iter(loader))  # a look at the data
    sampler.set_epoch(0)
    first = indices(loader)
    sampler.set_epoch(7)
    assert indices(loader) != first
    assert vars(sampler) == before | {"epoch": 7}
    assert type(sampler.epoch) is int
    loader = loader_of(0, sampler=sampler_of(0, shuffle=False))
    assert indices(loader) == indices(loader)


class Counting:
    """Another order an epoch, by ``set_epoch()``; no ranks."""

    def __init__(self) -> None:
        self.epoch = 0

    def __len__(self) -> int:
        return 24

    def __iter__(self) -> Iterator[int]:
        return iter(range(24)[:: -1 if self.epoch % 2 else 1])

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch


class CountingItself(Counting):
    """Counts on whenever it is started, too."""

    def __iter__(self) -> Iterator[int]:
        order = super().__iter__()
        self.epoch += 1
        return order


def stopped(loader: ThreadLoader[Any], told: Any, batches: int) -> Any:
    """Return the state after some batches, and the indices of the rest of that epoch."""
    told.set_epoch(3)
    iterator = iter(loader)
    for _ in range(batches):
        next(iterator)
    state = json.loads(json.dumps(loader.state_dict()))
    return state, [index for batch in iterator for index in batch[0].tolist()]


def resumed(state: Any, sampler: Any, **options: Any) -> ThreadLoader[Any]:
    """Return a loader that goes on from a state."""
    loader = loader_of(0, sampler=sampler, **options)
    loader.load_state_dict(state)
    return loader


class Property(Counting):
    """Its number can't be set but by ``set_epoch()``."""

    rank, num_replicas = 0, 2
    epoch = property(lambda self: self.number)  # type: ignore[assignment]

    def __init__(self) -> None:
        self.number = 0

    def set_epoch(self, epoch: int) -> None:
        self.number = epoch


SAMPLERS: dict[str, Callable[[], Any]] = {
    "distributed": lambda: sampler_of(1),
    "counting": Counting,
    "counting itself": CountingItself,
}


@pytest.mark.usefixtures("strict")
@pytest.mark.parametrize("threads", [0, 2])
@pytest.mark.parametrize("kind", [*SAMPLERS, "a property"])
def test_the_rest_of_an_epoch_is_loaded_if_nobody_tells_of_it(kind: str, threads: int) -> None:
    made = SAMPLERS.get(kind, Property)
    sampler = made()
    state, rest = stopped(loader_of(1, sampler=sampler, threads=threads), sampler, 2)
    loader = resumed(state, made(), threads=threads)
    iterator = iter(loader)
    first = next(iterator)[0].tolist()
    again = json.loads(json.dumps(loader.state_dict()))
    assert first + [index for batch in iterator for index in batch[0].tolist()] == rest
    assert indices(resumed(again, made(), threads=threads)) == rest[4:]


@pytest.mark.parametrize("other", [1, 2])
def test_who_tells_of_another_epoch_gets_the_rest_and_a_warning(other: int) -> None:
    sampler = sampler_of(0)
    state, rest = stopped(loader_of(0, sampler=sampler), sampler, 1)
    told = sampler_of(0)
    loader = resumed(state, told)
    told.set_epoch(other)
    with pytest.warns(UserWarning, match=rf"{other}\) .* in epoch 3: .*set_epoch\(3\)") as said:
        assert indices(loader) == rest
    assert said[0].filename == __file__
    told.set_epoch(4)
    assert indices(loader) != rest
    assert told.epoch == 4


def between(told: int | None) -> Any:
    """Return a state that is saved between two epochs, the first of which is told or not."""
    sampler = sampler_of(0)
    if told is not None:
        sampler.set_epoch(told)
    loader = loader_of(0, sampler=sampler)
    indices(loader)
    return json.loads(json.dumps(loader.state_dict()))


def test_after_a_saved_epoch_the_next_is_the_user_s_to_tell_of_or_the_same() -> None:
    for told in (None, 0, 2):
        expected = indices(loader_of(0, sampler=told_of(told or 0)))
        assert indices(resumed(between(told), sampler_of(0))) == expected
    with warnings.catch_warnings(action="error"):
        for told, early in [(0, False), *product((1, 6), (False, True))]:
            sampler = told_of(told) if early else sampler_of(0)
            loader = resumed(between(None), sampler)
            if not early:
                sampler.set_epoch(told)
            assert indices(loader) == indices(loader_of(0, sampler=told_of(told)))


def test_a_sampler_that_counts_itself_counts_on_between_two_epochs() -> None:
    sampler = CountingItself()
    loader = loader_of(0, sampler=sampler)
    indices(loader)
    state = loader.state_dict()
    following = indices(loader)
    assert indices(resumed(state, CountingItself())) == following != indices(loader)


@pytest.mark.filterwarnings("ignore:set_epoch:UserWarning")
@pytest.mark.parametrize("kind", SAMPLERS)
def test_an_epoch_whose_end_was_known_is_over(kind: str) -> None:
    for told in (None, 2, 4):
        sampler, again = SAMPLERS[kind](), SAMPLERS[kind]()
        sampler.set_epoch(3)
        loader = loader_of(0, sampler=sampler)
        iterator = iter(loader)
        for _ in range(len(loader)):
            next(iterator)
        # As Accelerate's loaders save it, which are a batch ahead.
        state = loader.state_dict() | {"_iterator_finished": True}
        assert next(iterator, None) is None
        resuming = resumed(state, again)
        if told is not None:
            sampler.set_epoch(told)
            again.set_epoch(told)
        for _ in range(2):
            assert indices(resuming) == indices(loader)


def test_a_sampler_that_has_a_share_is_not_cut_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    loader = loader_of(1, shard="auto")
    assert (len(loader), indices(loader)) == (3, indices(loader_of(1)))
    with pytest.raises(ValueError, match="both share the data out"):
        iter(loader_of(1, shard=(1, 2)))
