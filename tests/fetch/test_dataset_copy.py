"""Which copy of the dataset a worker has, and when it is made; what it is: tests/own."""

from __future__ import annotations

from typing import Any

import pytest
from support.in_workers import ROWS, in_workers
from support.patience import PATIENCE, Spawn

from threadloader import ThreadLoader


class Marked:
    mark = "before"

    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> Any:
        return self.mark


@pytest.mark.parametrize("how", ["auto", "deep"])
@pytest.mark.parametrize("threads", [1, 3])
def test_a_copy_is_what_the_dataset_was_at_iter(threads: int, how: Any, spawn: Spawn) -> None:
    def load() -> None:
        dataset = Marked()
        with ThreadLoader(
            dataset, 2, threads=threads, prefetch=1, collate_fn=list, dataset_copy=how
        ) as loader:
            batches = iter(loader)
            dataset.mark = "after"
            assert {mark for batch in batches for mark in batch} == {"before"}

    spawn(load).result(PATIENCE)


def put(value: Marked, index: int) -> None:
    value.mark = str(index)


@pytest.mark.parametrize("where", ["dataset", "collate_fn"])
def test_what_is_shared_mixes_up_samples(where: str) -> None:
    """The race that the copies prevent; else tests/own could not fail."""
    found = in_workers(Marked(), lambda it: it.mark, put, where=where, dataset_copy="shared")
    assert len(set(found)) < ROWS


def test_a_scripted_module_is_a_transform() -> None:
    torch = pytest.importorskip("torch")
    if not hasattr(torch, "jit"):
        pytest.skip("this torch has no scripts")
    module = torch.jit.trace(torch.nn.Identity(), torch.zeros(1))
    assert in_workers(module, lambda copy: float(copy(torch.ones(1)))) == [1.0] * ROWS
