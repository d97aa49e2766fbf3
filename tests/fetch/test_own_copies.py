"""On a free-threaded build a worker's objects are made in its own thread."""

from __future__ import annotations

from threading import get_ident
from typing import TYPE_CHECKING, Any

import pytest
from support.patience import PATIENCE

from threadloader import ThreadLoader, get_worker_info

if TYPE_CHECKING:
    from conftest import Spawn


class Copied:
    """A dataset that notes which threads copied it, and what it was then."""

    def __init__(self, size: int = 8) -> None:
        self.size = size
        self.copied_by: list[int] = []
        self.mark = "before"

    def __copy__(self) -> Copied:
        twin = object.__new__(type(self))
        vars(twin).update(vars(self), copied_by=[*self.copied_by, get_ident()])
        return twin

    def __deepcopy__(self, _: Any) -> Copied:
        return self.__copy__()

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, index: int) -> Any:
        return self.mark, self.copied_by, get_ident()

    def collated(self, samples: list[Any]) -> Any:
        return self, get_worker_info().dataset, samples

    def prepared(self, number: int) -> None:
        self.mark = f"prepared {number}"


def first(samples: list[Any]) -> Any:
    return samples


@pytest.mark.parametrize("how", ["auto", "deep"])
def test_the_thread_that_loads_is_the_one_that_copied(how: Any, spawn: Spawn) -> None:
    def load() -> None:
        with ThreadLoader(Copied(), 2, threads=2, collate_fn=first, dataset_copy=how) as loader:
            for batch in loader:
                for _, copied_by, loaded_by in batch:
                    assert copied_by == [get_ident(), loaded_by]

    spawn(load).result(PATIENCE)


@pytest.mark.parametrize("how", ["auto", "deep"])
@pytest.mark.parametrize("threads", [1, 3])
def test_a_copy_is_what_the_dataset_was_at_iter(threads: int, how: Any, spawn: Spawn) -> None:
    def load() -> None:
        dataset = Copied()
        with ThreadLoader(
            dataset, 2, threads=threads, prefetch=1, collate_fn=first, dataset_copy=how
        ) as loader:
            batches = iter(loader)
            dataset.mark = "after"
            assert {mark for batch in batches for mark, _, _ in batch} == {"before"}

    spawn(load).result(PATIENCE)


@pytest.mark.parametrize("how", ["auto", "deep"])
def test_dataset_and_functions_of_a_worker_belong_together(how: Any, spawn: Spawn) -> None:
    def load() -> None:
        dataset = Copied()
        with ThreadLoader(
            dataset,
            2,
            threads=2,
            collate_fn=dataset.collated,
            worker_init_fn=dataset.prepared,
            dataset_copy=how,
        ) as loader:
            for own, described, samples in loader:
                assert own is described is not dataset
                assert own.mark in {"prepared 0", "prepared 1"}
                assert {mark for mark, _, _ in samples} <= {"prepared 0", "prepared 1"}
        assert dataset.mark == "before"

    spawn(load).result(PATIENCE)


def test_deep_copies_of_data_are_the_workers_own(spawn: Spawn) -> None:
    class Words:
        def __init__(self) -> None:
            self.words = {"one": 1}

        def __len__(self) -> int:
            return 4

        def __getitem__(self, index: int) -> int:
            self.words["one"] += 1
            return id(self.words)

    def load() -> None:
        dataset = Words()
        with ThreadLoader(dataset, 1, threads=2, collate_fn=first, dataset_copy="deep") as loader:
            assert id(dataset.words) not in {number for batch in loader for number in batch}
        assert dataset.words == {"one": 1}

    spawn(load).result(PATIENCE)
