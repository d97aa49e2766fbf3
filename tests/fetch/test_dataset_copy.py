"""One copy of the dataset a worker: state on ``self`` is each worker's own, data is shared."""

from __future__ import annotations

import copy
import threading
from threading import current_thread
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from support.worker_copies import THREADS, Mapped, Meeting, auto_copy, together
from support.workers import join_workers

from threadloader import ThreadLoader

if TYPE_CHECKING:
    import io
    from collections.abc import Callable, Iterator
    from pathlib import Path


# A lazily opened file


@pytest.fixture
def numbers(tmp_path: Path) -> Path:
    """A file with the number ``n`` in record ``n``, of 8 bytes."""
    path = tmp_path / "numbers"
    np.arange(1000).tofile(path)
    return path


@pytest.fixture
def opened() -> Iterator[list[io.BufferedReader]]:
    """Every file that a `Records` opened, to be closed after the test."""
    files: list[io.BufferedReader] = []
    yield files
    for file in files:
        file.close()


class Records:
    """Reads every second record, from a file that it opens on first use.

    So threads that share the file's position read a record that none of them wants, in any order.
    """

    def __init__(self, path: Path, opened: list[io.BufferedReader], parties: int = 1) -> None:
        self.path = path
        self.note_opened = opened.append
        self.file: io.BufferedReader | None = None
        self.sought = Meeting(parties)

    def __len__(self) -> int:
        return THREADS

    def __getitem__(self, index: int) -> int:
        if self.file is None:
            self.file = self.path.open("rb")
            self.note_opened(self.file)
        self.file.seek(16 * index)
        self.sought.wait()
        return int.from_bytes(self.file.read(8), "little") // 2


def test_each_thread_reads_from_a_handle_of_its_own(
    numbers: Path, opened: list[io.BufferedReader]
) -> None:
    assert together(Records(numbers, opened, THREADS)) == [0, 1, 2, 3]
    assert len(opened) == THREADS


def test_a_handle_that_is_shared_reads_wrong_records(
    numbers: Path, opened: list[io.BufferedReader]
) -> None:
    """The race that the copies prevent; else the test above could not fail."""
    records = Records(numbers, opened, THREADS)
    records.file = numbers.open("rb")
    opened.append(records.file)
    records.sought = Meeting(first=0)  # shared, none is the first
    assert together(records, first=0, dataset_copy="shared") != [0, 1, 2, 3]


def test_a_dataset_that_drops_its_handle_when_pickled_drops_it_in_the_copy(
    numbers: Path, opened: list[io.BufferedReader]
) -> None:
    class Picklable(Records):
        def __getstate__(self) -> dict[str, Any]:
            return {**self.__dict__, "file": None}

    records = Picklable(numbers, opened, THREADS)
    records.file = numbers.open("rb")
    opened.append(records.file)
    assert together(records) == [0, 1, 2, 3]
    assert len(opened) == 1 + THREADS


class Closes(Records):
    """Closes its file when it dies."""

    def __del__(self) -> None:
        if self.file is not None:
            self.file.close()


def test_a_dataset_that_closes_its_file_when_it_dies_works_in_every_epoch(
    numbers: Path, opened: list[io.BufferedReader]
) -> None:
    dataset = Closes(numbers, opened)
    dataset.file = numbers.open("rb")
    for _ in range(2):
        together(dataset)
    assert not dataset.file.closed


def test_a_reader_that_closes_its_file_when_it_dies_stays_open(numbers: Path) -> None:
    class Reader:
        def __init__(self) -> None:
            self.file = numbers.open("rb")

        def __del__(self) -> None:
            self.file.close()

    class Reads(Mapped):
        def __init__(self) -> None:
            super().__init__(float)
            self.reader = Reader()

        def __del__(self) -> None:
            """Say goodbye; that there is such a method makes the loader look for handles."""

    dataset = Reads()
    together(dataset)
    assert not dataset.reader.file.closed


@pytest.mark.filterwarnings("ignore:all workers share")
def test_a_dataset_that_frees_a_number_when_it_dies_frees_it_once() -> None:
    """A file descriptor, or a pointer of a C library."""
    freed: list[int] = []

    class Native(Mapped):
        def __init__(self) -> None:
            super().__init__(float)
            self.pointer = 1234

        def __del__(self) -> None:
            freed.append(self.pointer)

    dataset = Native()
    together(dataset)
    join_workers()
    del dataset
    assert freed == [1234]


# dataset_copy=


def test_a_callable_makes_the_dataset_of_each_worker() -> None:
    made: list[tuple[Any, threading.Thread]] = []

    def make(original: Any) -> Any:
        made.append((original, current_thread()))
        return Mapped(float)

    dataset = Mapped(None)
    assert together(dataset, dataset_copy=make) == [0, 1, 2, 3]
    assert made == [(dataset, current_thread())] * THREADS


@pytest.mark.parametrize("how", ["deep", "callable"])
def test_an_error_of_a_copy_that_was_asked_for_reaches_the_caller(how: str) -> None:
    class Refuses(Mapped):
        def __deepcopy__(self, memo: object) -> Any:
            msg = "not to be copied"
            raise BufferError(msg)

    asked_for: Any = copy.deepcopy if how == "callable" else how
    loader = ThreadLoader(Refuses(float), threads=2, dataset_copy=asked_for)
    with pytest.raises(BufferError, match="not to be copied"):
        iter(loader)


# Datasets within datasets


def test_a_dataset_within_a_users_dataset_is_copied(
    numbers: Path, opened: list[io.BufferedReader]
) -> None:
    class Wrapper:
        def __init__(self, inner: Any) -> None:
            self.source = inner
            self.parts = [inner]
            self.named = {"inner": inner}

        def __len__(self) -> int:
            return len(self.source)

        def __getitem__(self, index: int) -> Any:
            return self.source[index]

    wrapped = Wrapper(Wrapper(Records(numbers, opened, THREADS)))
    assert together(wrapped) == [0, 1, 2, 3]
    assert len(opened) == THREADS
    twin = auto_copy(wrapped)
    assert twin.parts[0] is twin.named["inner"] is twin.source


WRAPPERS: dict[str, Callable[[Any, Any], Any]] = {
    "subset": lambda data, dataset: data.Subset(dataset, range(THREADS)),
    "subset of a subset": lambda data, dataset: data.Subset(
        data.Subset(dataset, [3, 2, 1, 0]), [3, 2, 1, 0]
    ),
    "concatenation": lambda data, dataset: data.ConcatDataset([dataset]),
    "stack": lambda data, dataset: data.StackDataset(dataset),
    "named stack": lambda data, dataset: data.StackDataset(number=dataset),
}


def _flat(batch: Any) -> list[int]:
    if isinstance(batch, dict):
        batch = batch["number"]
    if isinstance(batch, (list, tuple)):
        batch = batch[0]
    return np.asarray(batch).tolist()


@pytest.mark.parametrize("wrap", WRAPPERS.values(), ids=WRAPPERS)
def test_torchs_wrappers_are_seen_through(
    wrap: Callable[[Any, Any], Any], numbers: Path, opened: list[io.BufferedReader]
) -> None:
    data = pytest.importorskip("torch.utils.data")
    wrapped = wrap(data, Records(numbers, opened, THREADS))
    order = [[0], list(range(THREADS))]
    with ThreadLoader(wrapped, batch_sampler=order, threads=THREADS) as loader:
        _, batch = loader
    assert _flat(batch) == [0, 1, 2, 3]
    assert len(opened) == THREADS
