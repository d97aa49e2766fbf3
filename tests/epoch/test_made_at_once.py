"""Small batches that the calling thread makes at once are those that threads make."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from threadloader import ClosedError, ThreadLoader, sample_rng

ROWS, SIZE = 4, 22
ODD = 13  # in the fourth batch, when the layout has been known for long


class Rows:
    """Arrays and what each sample draws; one index is odd."""

    def __init__(self, odd: Callable[[], Any] = lambda: None) -> None:
        self.odd = odd

    def __len__(self) -> int:
        return SIZE

    def __getitem__(self, index: int) -> Any:
        drawn = random.random() + float(sample_rng().random())
        found = self.odd() if index == ODD else None
        return (np.full(3, index), drawn, "text") if found is None else found


def _make(dataset: Any, **options: Any) -> ThreadLoader[Any]:
    return ThreadLoader(dataset, ROWS, seed=1, output="numpy", **options)


def test_a_sample_that_closes_its_loader_is_the_last_one() -> None:
    fetched: list[int] = []

    class Closing(Rows):
        def __getitem__(self, index: int) -> Any:
            fetched.append(index)
            if index == ODD:
                loader.close()
            return super().__getitem__(index)

    loader = _make(Closing(), threads=0)
    batches = iter(loader)
    for _ in range(3):
        next(batches)
    with pytest.raises(ClosedError):
        next(batches)
    assert fetched == list(range(ODD + 1))


def test_a_sample_can_t_ask_for_the_batch_after_its_own() -> None:
    """Its random stream would be another sample's, and the batch come before its own."""

    class Asking(Rows):
        def __getitem__(self, index: int) -> Any:
            if index == ODD:
                next(iterator)
            return index

    dataset = Asking()
    loader: ThreadLoader[Any] = ThreadLoader(dataset, ROWS, threads=0, output="numpy")
    iterator = iter(loader)
    seen = [next(iterator).tolist() for _ in range(ODD // ROWS)]
    with pytest.raises(RuntimeError, match="the iterator that loads it"):
        next(iterator)
    seen += [batch.tolist() for batch in iterator]
    assert seen == [list(range(n, min(n + ROWS, SIZE))) for n in (0, 4, 8, 16, 20)]
