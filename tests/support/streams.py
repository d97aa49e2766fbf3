"""Iterables to read, and what a loader makes of them."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from support.pictures import told_by
from threadloader import ThreadLoader

OUTPUTS = ["numpy", *(["torch"] if importlib.util.find_spec("torch") else [])]

each_output = pytest.mark.parametrize("output", OUTPUTS)
each_number_of_threads = pytest.mark.parametrize("threads", [0, 1, 2, 4])


class Rows:
    """Iterable, with nothing but ``__iter__``."""

    def __init__(self, size: int) -> None:
        self.size = size

    def __iter__(self) -> Iterator[int]:
        return (row for row in range(self.size))


class Hiccups:
    """Raises at some rows, and can go on."""

    def __init__(self, size: int, bad: set[int]) -> None:
        self.rows = iter(range(size))
        self.bad = bad

    def __iter__(self) -> Hiccups:
        return self

    def __next__(self) -> int:
        row = next(self.rows)
        if row in self.bad:
            raise LookupError(row)
        return row


def make(dataset: Any, batch_size: int | None = 3, **arguments: Any) -> ThreadLoader[Any]:
    return ThreadLoader(dataset, batch_size, **({"threads": 2, "output": "numpy"} | arguments))


def lists(loader: Any) -> list[Any]:
    return [np.asarray(batch).tolist() for batch in loader]


def outcomes(loader: ThreadLoader[Any]) -> list[Any]:
    """Return what each call of next() gives, batches as lists and errors as they are."""
    return told_by(loader, lambda batch: np.asarray(batch).tolist())


def patiently(iterator: Iterator[Any]) -> Iterator[Any]:
    """Yield the batches as lists; a busy machine may need more than one go at each."""
    while True:
        try:
            yield next(iterator).tolist()
        except StopIteration:
            return
        except RuntimeError as error:
            if "timed out" not in str(error):
                raise


def square(row: int) -> int:
    return row * row
