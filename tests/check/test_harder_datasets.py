"""Unsafe datasets that hide what they do: in locks, default values, closures, a few samples."""

from __future__ import annotations

import io
import threading
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from support.unsafe_datasets import ROWS, Dataset

from threadloader._check.checking import check

if TYPE_CHECKING:
    from collections.abc import Callable


def file() -> io.BytesIO:
    return io.BytesIO(bytes(range(ROWS)) * 4)


class LockedInParts(Dataset):
    """Each step is locked, and the two together are not."""

    def __init__(self) -> None:
        self.file, self.lock = file(), threading.Lock()

    def __getitem__(self, index: int) -> bytes:
        with self.lock:
            self.file.seek(index)
        with self.lock:
            return self.file.read(4)


class TwoLocks(Dataset):
    """Samples with another lock are not kept out."""

    def __init__(self) -> None:
        self.file, self.locks = file(), [threading.Lock(), threading.Lock()]

    def __getitem__(self, index: int) -> bytes:
        with self.locks[index % 2]:
            self.file.seek(index)
            return self.file.read(4)


class PutBack(Dataset):
    """Data is changed, copied, and changed back."""

    def __init__(self) -> None:
        self.rows = np.ones((ROWS, 3))

    def __getitem__(self, index: int) -> Any:
        row = self.rows[0]
        row += index
        found = row.copy()
        row -= index
        return found


def total(index: int, parts: list[int] = []) -> int:  # noqa: B006  # what is found
    parts.append(index)
    found = sum(parts)
    parts.pop()
    return found


class DefaultValue(Dataset):
    def __getitem__(self, index: int) -> int:
        return total(index)


class Closure(Dataset):
    def __init__(self) -> None:
        now = {"index": 0}

        def double(index: int) -> int:
            now["index"] = index
            return 2 * now["index"]

        self.double = double

    def __getitem__(self, index: int) -> int:
        return self.double(index)


class FewSamples(Dataset):
    """Only two samples use what is shared."""

    class Note:
        index = -1

    def __init__(self) -> None:
        self.note = self.Note()

    def __getitem__(self, index: int) -> int:
        if index not in {7, 8}:
            return index
        self.note.index = index
        return self.note.index


class Counts(Dataset):
    class Counts:
        def __init__(self) -> None:
            self.rows = [0] * 3

    def __init__(self) -> None:
        self.counts = self.Counts()

    def __getitem__(self, index: int) -> int:
        self.counts.rows[index % 3] += 1
        return index


class Rows(list[int]):
    """A list, so no worker has a copy, with an attribute."""

    current = 0

    def __getitem__(self, index: Any) -> Any:
        self.current = index
        return self.current


HARDER: list[tuple[str, str, Callable[[], Any]]] = [
    ("shared-handle", "dataset.file", LockedInParts),
    ("shared-handle", "dataset.file", TwoLocks),
    ("shared-container", "dataset.rows", PutBack),
    ("shared-container", "a default of", DefaultValue),
    ("shared-container", "now", Closure),
    ("shared-attribute", "dataset.note.index", FewSamples),
    ("shared-container", "dataset.counts.rows", Counts),
    ("shared-attribute", "dataset.current", lambda: Rows(range(ROWS))),
]


@pytest.mark.parametrize(("kind", "name", "make"), HARDER)
def test_what_is_shared_is_found_and_named(kind: str, name: str, make: Callable[[], Any]) -> None:
    copied = make in (LockedInParts, TwoLocks)  # each worker opens the file again
    (finding,) = check(make(), dataset_copy="shared" if copied else "auto").findings
    assert finding.kind == kind
    assert finding.message.startswith(name)
    assert finding.line is not None
    assert finding.line.file == __file__
