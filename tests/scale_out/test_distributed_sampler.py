"""A DistributedSampler of the user's: its share is respected, each rank draws its own numbers."""

from __future__ import annotations

import json
import random
import warnings
from typing import Any

import pytest

from threadloader import ThreadLoader

data = pytest.importorskip("torch.utils.data")


class Drawing:
    def __len__(self) -> int:
        return 24

    def __getitem__(self, index: int) -> tuple[int, float]:
        return index, random.random()


def sampler_of(rank: int, **options: Any) -> Any:
    return data.DistributedSampler(Drawing(), num_replicas=2, rank=rank, **options)


def loader_of(rank: int, **options: Any) -> ThreadLoader[Any]:
    sampler = options.pop("sampler", None) or sampler_of(rank)
    return ThreadLoader(
        Drawing(), 4, sampler=sampler, output="numpy", **{"seed": 3, "threads": 0, **options}
    )


def numbers(loader: ThreadLoader[Any]) -> list[float]:
    return [number for batch in loader for number in batch[1].tolist()]


def indices(loader: ThreadLoader[Any]) -> list[int]:
    return [index for batch in loader for index in batch[0].tolist()]


@pytest.mark.parametrize("threads", [0, 2])
def test_two_ranks_with_one_seed_draw_different_numbers(threads: int) -> None:
    first, second = (numbers(loader_of(rank, threads=threads)) for rank in range(2))
    assert not {*first} & {*second}
    assert second == numbers(loader_of(1))


def test_the_first_rank_draws_what_a_single_process_draws() -> None:
    alone = ThreadLoader(Drawing(), 4, seed=3, output="numpy", threads=0)
    assert numbers(loader_of(0)) == numbers(alone)[:12]


def test_states_from_before_go_on_with_the_same_numbers_on_all_ranks() -> None:
    loader = loader_of(1)
    iterator = iter(loader)
    next(iterator)
    state = json.loads(json.dumps(loader.state_dict())) | {"threadloader": 3}
    older = loader_of(1)
    older.load_state_dict(state)
    assert numbers(older) == numbers(loader_of(0))[4:]
    assert older.state_dict()["draws"] == {"alike": True}


def test_the_state_of_one_rank_is_good_for_all() -> None:
    expected = [indices(loader_of(rank)) for rank in range(2)]
    loaders = [loader_of(rank) for rank in range(2)]
    states = []
    for loader in loaders:
        iterator = iter(loader)
        next(iterator)
        next(iterator)
        states.append(loader.state_dict())
    assert states[0] == states[1]
    for rank in range(2):
        loader = loader_of(rank)
        loader.load_state_dict(states[0])
        assert indices(loader) == expected[rank][8:]


def test_who_forgets_set_epoch_gets_another_order_and_one_warning_an_epoch() -> None:
    loader = loader_of(0)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        first = indices(loader)
    with pytest.warns(UserWarning, match=r"the loader calls set_epoch\(1\)") as caught:
        second = indices(loader)
    assert caught[0].filename == __file__
    assert first != second
    told = sampler_of(0)
    told.set_epoch(1)
    assert second == indices(loader_of(0, sampler=told))


def test_who_calls_set_epoch_is_left_alone() -> None:
    sampler = sampler_of(0)
    loader = loader_of(0, sampler=sampler)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        next(iter(loader))  # a look at the data
        sampler.set_epoch(0)
        first = indices(loader)
        sampler.set_epoch(0)
        assert indices(loader) == first
        sampler.set_epoch(7)
        assert indices(loader) != first
    assert sampler.epoch == 7


def test_without_shuffling_there_is_nothing_to_tell() -> None:
    loader = loader_of(0, sampler=sampler_of(0, shuffle=False))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert indices(loader) == indices(loader)


def test_a_resumed_epoch_that_the_loader_told_of_is_told_again() -> None:
    loader = loader_of(0)
    list(loader)
    with pytest.warns(UserWarning, match="set_epoch"):
        iterator = iter(loader)
    first = next(iterator)[0].tolist()
    state = json.loads(json.dumps(loader.state_dict()))
    rest = [index for batch in iterator for index in batch[0].tolist()]
    again = loader_of(0)
    again.load_state_dict(state)
    assert indices(again) == rest
    assert len(first + rest) == 12


def test_a_sampler_that_has_a_share_is_not_cut_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    loader = loader_of(1, shard="auto")
    assert (len(loader), indices(loader)) == (3, indices(loader_of(1)))
    with pytest.raises(ValueError, match="both share the data out"):
        iter(loader_of(1, shard=(1, 2)))
