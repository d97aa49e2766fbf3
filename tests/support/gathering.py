"""Datasets of arrays, whose rows are gathered, next to the same samples collated one by one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from support.patience import PATIENCE, Spawn
from support.pictures import outcomes
from threadloader import ThreadLoader


class Plain:
    """The same samples, of a class that nothing is known of."""

    def __init__(self, dataset: Any) -> None:
        self.dataset = dataset

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, index: Any) -> Any:
        return self.dataset[index]


class Hooked:
    """Rows of an array; notes which samples were asked for one by one."""

    def __init__(self, array: Any) -> None:
        self.array = array
        self.asked: list[Any] = []

    def __len__(self) -> int:
        return len(self.array)

    def __getitem__(self, index: Any) -> Any:
        self.asked.append(index)
        return self.array[index]

    def gathered_arrays(self) -> Any:
        return [self.array]


def make(dataset: Any, batch_size: Any = 4, **arguments: Any) -> ThreadLoader[Any]:
    return ThreadLoader(dataset, batch_size, **({"threads": 0, "output": "numpy"} | arguments))


def story(loader: ThreadLoader[Any]) -> list[Any]:
    with loader:
        return [outcomes(loader) for _ in range(2)]


def assert_alike(
    spawn: Spawn, dataset: Any, build: Callable[[Any], ThreadLoader[Any]] = make
) -> list[Any]:
    """Compare a dataset's batches with those of samples that are collated one by one."""
    expected: list[Any] = spawn(story, build(Plain(dataset))).result(PATIENCE)
    assert spawn(story, build(dataset)).result(PATIENCE) == expected
    return expected


def numbers(size: int = 11, width: int = 3) -> Any:
    return np.arange(size * width, dtype=np.int32).reshape(size, width)
