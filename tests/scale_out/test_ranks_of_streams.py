"""Iterable datasets on several ranks: each draws random numbers of its own, if there is a seed."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from threadloader import ThreadLoader
from threadloader._worker.worker_info import pass_seed_here


class Drawing:
    def __iter__(self) -> Iterator[float]:
        for _ in range(6):
            yield random.random()


class Telling:
    def __iter__(self) -> Iterator[int | None]:
        yield pass_seed_here()


def with_a_number(sample: float) -> tuple[float, float]:
    return sample, random.random()


def loaded(rank: int, monkeypatch: pytest.MonkeyPatch, dataset: Any, **options: Any) -> list[Any]:
    monkeypatch.setenv("RANK", str(rank))
    monkeypatch.setenv("WORLD_SIZE", "2")
    loader: ThreadLoader[Any] = ThreadLoader(dataset, batch_size=None, seed=3, **options)
    return list(loader)


def test_a_transform_draws_different_numbers_on_each_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    ranks = [
        loaded(rank, monkeypatch, Drawing(), threads=2, transform=with_a_number)
        for rank in range(2)
    ]
    assert not {number for _, number in ranks[0]} & {number for _, number in ranks[1]}


@pytest.mark.filterwarnings("ignore:the state holds none of the iterable")
def test_ranks_with_equal_generators_draw_different_numbers_and_go_on_with_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def make(rank: int) -> ThreadLoader[Any]:
        monkeypatch.setenv("RANK", str(rank))
        monkeypatch.setenv("WORLD_SIZE", "2")
        generator = np.random.default_rng(3)
        return ThreadLoader(Drawing(), batch_size=None, threads=1, generator=generator)

    ranks = []
    for rank in range(2):
        loader, epochs = make(rank), []
        for _ in range(3):
            iterator = iter(loader)
            epochs.append([next(iterator) for _ in range(2)])
            state = loader.state_dict()
            epochs[-1] += iterator
            resumed = make(rank)
            resumed.load_state_dict(state)
            assert list(resumed) == epochs[-1][2:]
        ranks.append(epochs)
    for one, other in zip(*ranks, strict=True):
        assert not {*one} & {*other}


def test_the_seed_of_a_pass_is_common_to_all_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = (loaded(rank, monkeypatch, Telling(), threads=1) for rank in range(2))
    assert first == second != [None]


def test_half_an_environment_is_no_concern_of_a_loader(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "1")
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    loader: ThreadLoader[Any] = ThreadLoader(Drawing(), batch_size=None, seed=3, threads=0)
    assert len(list(loader)) == 6
