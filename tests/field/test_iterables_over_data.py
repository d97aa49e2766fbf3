"""Replicas of an iterable dataset share large data, and have the rest for themselves."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from threading import Lock
from typing import Any

import numpy as np
import pytest

from threadloader import ThreadLoader, get_worker_info
from threadloader._torch import IterableDataset

SIZE = 1 << 25  # more than 64 MiB, which nobody touches


class Rows(IterableDataset):  # type: ignore[type-arg]
    """Gives itself, so that what it has can be looked at."""

    def __init__(self, **parts: Any) -> None:
        vars(self).update(parts)

    def __iter__(self) -> Iterator[Any]:
        yield self


def replicas(dataset: Any, threads: int = 3) -> list[Any]:
    with ThreadLoader(
        dataset, batch_size=None, threads=threads, collate_fn=lambda it: it
    ) as loader:
        return list(loader)


def _frame() -> Any:
    return pytest.importorskip("pandas").DataFrame({"x": np.arange(9)})


def _mapped() -> Any:
    with tempfile.TemporaryFile() as file:
        return np.memmap(file, np.uint8, "w+", shape=1 << 21)


DATA: dict[str, Callable[[], Any]] = {
    "array": lambda: np.zeros(SIZE),
    "memory map": _mapped,
    "tensor": lambda: pytest.importorskip("torch").zeros(SIZE),
    "frame": _frame,
}


@pytest.mark.parametrize("make", DATA.values(), ids=DATA)
@pytest.mark.parametrize("lock", [False, True])
def test_large_data_is_shared(make: Any, lock: bool) -> None:
    data, small = make(), [3, 1, 2]
    kept = {"it": [data]}
    found = replicas(Rows(data=data, kept=kept, small=small, lock=Lock() if lock else None))
    assert len({id(replica) for replica in found}) == 3
    assert len({id(replica.small) for replica in found}) == 3
    assert all(replica.data is replica.kept["it"][0] is data for replica in found)


def test_a_file_of_an_iterable_is_opened_again_for_each_replica(tmp_path: Path) -> None:
    path = tmp_path / "it"
    path.write_bytes(bytes(range(9)))

    class Reads(Rows):
        def __iter__(self) -> Iterator[Any]:
            yield from self.file.read()

    with path.open("rb", buffering=0) as file:
        file.seek(3)
        got = replicas(Reads(file=file))
        assert sorted(got) == sorted([*range(3, 9)] * 3)
        assert file.tell() == 3


class Shuffled(IterableDataset):  # type: ignore[type-arg]
    """Shuffles its indices in place, and gives each worker its share of them."""

    def __init__(self, size: int) -> None:
        self.indices = np.arange(size)

    def __iter__(self) -> Iterator[int]:
        info = get_worker_info()
        assert info is not None
        np.random.default_rng(7).shuffle(self.indices)
        yield from self.indices[info.id :: info.num_workers].tolist()


@pytest.mark.parametrize("size", [1000, 200_000])
def test_indices_that_replicas_shuffle_are_their_own(size: int) -> None:
    dataset = Shuffled(size)
    loader = ThreadLoader(dataset, 1000, threads=4, output="numpy")
    assert sorted(index for batch in loader for index in batch.tolist()) == list(range(size))
    assert dataset.indices.tolist() == list(range(size))
