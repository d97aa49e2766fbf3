"""Samples in memory: one copy for all threads, within a budget of bytes that counts all of it.

Whoever asks for a sample gets a copy of his own, so nobody can spoil what is kept.  Nothing makes
room for anything: in each epoch all samples are due once, so the one that would have to go is as
good as any other.
"""

from __future__ import annotations

import copy
import os
import re
import sys
from collections import deque
from contextlib import contextmanager
from threading import Lock, RLock
from typing import TYPE_CHECKING, Any

import numpy as np

from threadloader import _torch
from threadloader._authors import free_memory

if TYPE_CHECKING:
    from collections.abc import Iterator


# What never changes, and so needs no copy.
_PLAIN = (bool, int, float, complex, str, bytes, type(None), np.generic)
_SIZE = re.compile(r"(\d+(?:\.\d+)?) ?([KMGT]?)(i?)B?", re.IGNORECASE)
_FREE = 256 << 20  # bytes that are left to the rest of the program.  Unmeasured, a choice
_STEP = 16 << 20  # bytes that are taken before the system is asked again, in some 50 us
_ENTRY = 150  # bytes of a sample beside its parts: in the dict, and its number
_ARRAY = 256  # bytes of an array or a tensor beside its elements
_IMAGE = 1024  # of an image, without 8 for each row


def nbytes_of(size: int | str) -> int:
    """Return a number of bytes.

    Args:
        size: The number, or a text: ``"8GiB"``, ``"1.5 TB"``.

    Raises:
        ValueError: It is less than 1, or another text.
    """
    if isinstance(size, str) and (found := _SIZE.fullmatch(size.strip())):
        number, unit, binary = found.groups()
        size = int(float(number) * (1024 if binary else 1000) ** " KMGT".index(unit.upper() or " "))
    if isinstance(size, (bool, str)) or size < 1:
        msg = f'memory={size!r}: bytes are needed, at least 1, or a text like "8GiB"'
        raise ValueError(msg)
    return int(size)


class InMemory:
    """The samples of one dataset that are kept in memory.

    Copies of the dataset, one for each worker, share it.  A forked process reads what was there,
    and adds nothing; a pickle is empty.

    Args:
        nbytes: The budget.

    Invariants, whenever ``_lock`` is not held:
        1. What is in ``_kept`` takes at most ``used`` bytes, and that is at most ``nbytes``.

    Threads:
        all: shared.
    """

    def __init__(self, nbytes: int) -> None:
        self.nbytes = nbytes
        self.is_full = False  # whether a sample did not fit; only ever becomes True
        self._process = os.getpid()
        # By index.  Each is read and written by one call, atomic on both builds; so is the other.
        self._kept: dict[int, Any] = {}
        # Who loads a sample.  By process: a forked child must not wait for a thread of its parent.
        self._making: dict[tuple[int, int], RLock] = {}
        self._lock = Lock()
        # All below: guarded by _lock; ``used`` is read without it, whole.
        self.used = 0
        self._asked = 0  # bytes: what may be used before the system is asked again

    def __deepcopy__(self, _memo: dict[int, Any]) -> InMemory:
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        return InMemory, (self.nbytes,)

    def __repr__(self) -> str:
        return f"memory={self.nbytes}"

    def __len__(self) -> int:
        return len(self._kept)

    def find(self, index: int) -> tuple[Any] | None:
        """Return a copy of the sample that is kept; None if there is none."""
        kept = self._kept.get(index, self)  # which no sample is
        return None if kept is self else (copied(kept),)

    @contextmanager
    def making(self, index: int) -> Iterator[None]:
        """Load a sample, or wait for the thread that does."""
        key, mine = (os.getpid(), index), RLock()
        with mine:
            first = self._making.setdefault(key, mine)
            if first is mine:
                try:
                    yield
                finally:
                    del self._making[key]
                return
        with first:
            pass
        yield  # it was kept, or does not fit

    def keep(self, index: int, sample: Any) -> Any:
        """Keep a copy of a sample if there is room, and return the sample.

        Raises:
            Exception: What ``copy.deepcopy`` raises, for a part of no kind that is known here.
        """
        own = copied(sample)
        if os.getpid() == self._process:
            nbytes = _size(own, {}) + _ENTRY
            with self._lock:
                if index not in self._kept and self._takes(nbytes):
                    self._kept[index] = own
        return sample

    def has(self, index: int, sample: Any) -> bool:
        """Whether the sample that is kept is equal to this one."""
        kept = self._kept.get(index, self)
        return kept is self or is_same(kept, sample)

    def _takes(self, nbytes: int) -> bool:
        """Take bytes of the budget, if there are so many, and so many are free.  Call locked."""
        used = self.used + nbytes
        fits = used <= self.nbytes
        if fits and used > self._asked:
            step, free = max(nbytes, _STEP), free_memory()
            fits = free is None or free >= step + _FREE
            self._asked = self.used + step * fits
        self.used += nbytes * fits
        self.is_full |= not fits
        return fits


def copied(value: Any) -> Any:
    """Return a copy of a value that shares nothing with it that can be changed.

    Raises:
        Exception: What ``copy.deepcopy`` raises, for a part of no kind that is known here.
    """
    return _copied(value, {})


def _copied(value: Any, copies: dict[int, Any]) -> Any:
    """Return a copy; an object that is there twice has one.

    Args:
        value: The value.
        copies: Of parts that were copied, by the ids of these; grows.
    """
    kind = type(value)
    if kind is tuple or kind is list:
        return kind([_copied(part, copies) for part in value])
    if kind is dict:
        return {key: _copied(part, copies) for key, part in value.items()}
    if isinstance(value, tuple) and hasattr(kind, "_make"):
        return kind._make(_copied(part, copies) for part in value)
    if id(value) not in copies:
        copies[id(value)] = _copy_of(value)
    return copies[id(value)]


def _copy_of(value: Any) -> Any:
    if isinstance(value, _PLAIN):
        return value
    if _is_array(value):
        return value.copy("K")
    # A copy of a view by `copy.deepcopy` has all of the memory that it is a view of.
    if type(value) is _torch.Tensor and not value.requires_grad:
        return value.clone()
    return value.copy() if _is_image(value) else copy.deepcopy(value)


def is_same(one: Any, other: Any) -> bool:
    """Whether two samples have the same values, bit by bit, as far as they can be compared."""
    if type(one) is not type(other):
        return False
    content = _content(one)
    if content is not None:
        return content == _content(other)
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(is_same(one[key], other[key]) for key in one)
    if one is other or isinstance(one, (*_PLAIN, set, frozenset, _torch.Tensor)):
        return one is other or _is_equal(one, other)
    parts, others = _parts_of(one), _parts_of(other)
    return len(parts) == len(others) and all(map(is_same, parts, others))


def _is_equal(one: Any, other: Any) -> bool:
    """Whether two values are equal, or are no numbers; True if they can't be compared."""
    try:
        same = (one == other) | ((one != one) & (other != other))  # noqa: PLR0124
        return bool(getattr(same, "all", lambda: same)())
    except Exception:  # noqa: BLE001  # sparse tensors say
        return True


def _content(value: Any) -> tuple[Any, ...] | None:
    """Return all that an array, a tensor or an image is; None of another value."""
    if _is_image(value):
        return value.mode, value.size, value.tobytes()
    array: Any = _torch.array_of(value) if isinstance(value, _torch.Tensor) else value
    return (array.dtype, array.shape, array.tobytes()) if _is_array(array) else None


def _parts_of(value: Any) -> list[Any]:
    """Return what a value is made of, as ``copy.deepcopy`` finds it; nothing if it can't tell."""
    if isinstance(value, (tuple, list, deque)):
        return list(value)
    try:
        reduced = value.__reduce_ex__(4)
    except Exception:  # noqa: BLE001  # a function or an open file say: it is not looked into
        return []
    if isinstance(reduced, str):  # the name of something that there is once
        return [reduced]
    _, args, state, items, pairs = (*reduced, None, None, None)[:5]
    return [args, state, list(items or ()), list(pairs or ())]


def _is_array(value: Any) -> bool:
    return type(value) in (np.ndarray, np.memmap) and not value.dtype.hasobject


def _is_image(value: Any) -> bool:
    return type(value).__module__.startswith("PIL.") and hasattr(value, "getbands")


def _size(value: Any, seen: dict[int, Any]) -> int:
    """Return the bytes that a value takes when it is kept, or some more.

    Args:
        value: The value.
        seen: What was counted, by its id; grows.  They are kept, so that no id comes twice.
    """
    if isinstance(value, _PLAIN):
        return sys.getsizeof(value)
    if id(value) in seen or isinstance(value, type):
        return 0
    seen[id(value)] = value
    own, parts = sys.getsizeof(value), []
    if _is_array(value):
        own = value.nbytes + _ARRAY
    elif isinstance(value, _torch.Tensor):
        own = _torch.dense_nbytes(value) + _ARRAY
    elif _is_image(value):
        width, height = value.size
        depth = {"1": 1, "L": 1, "P": 1}.get(value.mode, 2 if "16" in value.mode else 4)
        own, parts = int(width * height * depth + 8 * height + _IMAGE), [value.info]
    elif isinstance(value, dict):
        parts = [*value, *value.values()]
    else:
        parts = [*value] if isinstance(value, (set, frozenset)) else _parts_of(value)
    return own + sum(_size(part, seen) for part in parts)
