"""Samples are what ``dataset[index]`` gives, whatever the class says that this is."""

from __future__ import annotations

from typing import Any

import pytest
from support.patience import PATIENCE, Spawn
from support.streams import outcomes

from threadloader import ThreadLoader

each_number_of_threads = pytest.mark.parametrize("threads", [0, 2])


class Base:
    def __init__(self) -> None:
        self.__getitem__ = None  # a class alone says what its objects[index] is

    def __getitem__(self, index: int) -> int:
        return 2 * index


class Doubles(dict[int, int]):
    def __missing__(self, index: int) -> int:
        return 2 * index


@pytest.mark.parametrize(
    "dataset",
    [Base(), Doubles(), [0, 2, 4, 6]],
    ids=lambda value: type(value).__name__,
)
@each_number_of_threads
def test_samples_are_what_the_expression_with_brackets_gives(
    dataset: Any, threads: int, spawn: Spawn
) -> None:
    loader = ThreadLoader(dataset, 2, sampler=[3, 1], threads=threads, collate_fn=list)
    assert spawn(outcomes, loader).result(PATIENCE) == [[dataset[3], dataset[1]]] == [[6, 2]]
