"""Each worker's copies of the dataset and of the functions that it calls; the data is shared.

User code written for worker processes keeps state on ``self``: a file opened on first use, the
parameters that a transform drew for this sample, the longest sample of a batch.  Threads would
share that state.  So each worker gets its own *objects* over the same *data*.
"""

from __future__ import annotations

import copy
import math
import types
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from threadloader import _torch
from threadloader._fetch.kinds import Kind, is_array, kind_of
from threadloader._fetch.object_copy import Copied, ObjectCopier
from threadloader._fetch.parts import CONTAINERS, LARGE, entries, parts, reached

if TYPE_CHECKING:
    from collections.abc import Iterable


DatasetCopy = Literal["auto", "shared", "deep"]

# Of an array, from which on replicas of an iterable share it; and of one that may be indices.
LARGE_BYTES, LARGE_INDEX_BYTES = 1 << 20, 1 << 26


def copy_dataset(
    dataset: Any, how: DatasetCopy, copied: Copied | None = None, *, deep: bool = False
) -> Any:
    """Return the dataset that one worker uses.

    Args:
        dataset: The user's dataset.
        how: ``"auto"`` copies objects, and shares the data and what refuses to be copied.
            ``"shared"`` is the object itself.  ``"deep"`` is ``copy.deepcopy``, data included.
        copied: Gets what is copied, for a collate function that refers to it.
        deep: Whether ``"auto"`` copies its containers, too, as of a transform.

    Raises:
        Exception: What ``copy.deepcopy`` raises.
    """
    copied = Copied() if copied is None else copied
    if how == "shared":
        copied.has_generators = True  # for all that is known
        copied[id(dataset)] = dataset, dataset
        return dataset
    if how == "deep":
        return deep_copy(dataset, copied)
    try:
        return ObjectCopier(copied).copy_root("dataset", dataset, deep=deep)
    except RecursionError:  # a linked list of transforms, say
        copied.clear()
        return dataset


def copy_function(function: Any, how: DatasetCopy, copied: Copied, name: str = "collate_fn") -> Any:
    """Return the function that one worker calls.

    Args:
        function: The user's: called with a sample, or with the samples of a batch.
        how: ``"shared"`` is the function itself.  ``"deep"`` is a ``copy.deepcopy`` of a callable
            object.  Otherwise, and for methods and closures, objects are copied; data is shared,
            and so are objects that refuse to be copied.
        copied: What the worker has copies of, its dataset say; gets what is copied now.
        name: Of the argument.

    Raises:
        Exception: What ``copy.deepcopy`` raises.
    """
    if how == "shared" or function is None:
        return function
    if how == "deep" and not isinstance(function, (types.FunctionType, types.MethodType)):
        return deep_copy(function, copied)
    try:
        return ObjectCopier(copied).copy_root(name, function)
    except Exception:  # noqa: BLE001  # a class refuses, or a linked list is too deep
        return function


def deep_copy(value: Any, copied: Copied, shared: Iterable[Any] = ()) -> Any:
    """Return a ``copy.deepcopy``.

    Args:
        value: The object.
        copied: What was copied before; gets what is copied now.
        shared: Parts of it that are not copied.

    Raises:
        Exception: What ``copy.deepcopy`` raises; ``copied`` is as before then.
    """
    copied.has_generators = True  # for all that is known
    memo: dict[int, Any] = {key: twin for key, (_, twin) in copied.items()}
    memo.update((id(part), part) for part in shared)
    twin = copy.deepcopy(value, memo)
    kept = memo.pop(id(memo), ())  # the originals, so that no other object gets their ids
    copied.update((key, (kept, part)) for key, part in memo.items() if key not in copied)
    return twin


def large_data(dataset: Any) -> list[Any]:
    """Return what replicas of an iterable dataset share: large arrays, and shared memory.

    Others they may change: shuffled indices, say.
    """
    return [
        part
        # Worker processes would share shared memory, too: an epoch's number, say.
        for part in reached(dataset, _parts_of_replica, math.inf)
        if _torch.is_shared(part) or (is_array(part) and _is_data(part))
    ]


def _parts_of_replica(value: Any) -> list[tuple[Any, Any]]:
    kind = kind_of(value)
    if kind.is_shared or kind is Kind.GENERATOR:
        return []
    large = isinstance(value, CONTAINERS) and len(value) > LARGE
    return [*parts(value), *(entries(value) if large else ())]


def _is_data(array: Any) -> bool:
    """Whether replicas may share an array, a frame or a table."""
    if isinstance(array, np.memmap) or not getattr(getattr(array, "flags", None), "writeable", 1):
        return True
    indices = getattr(array, "ndim", 2) == 1 and "int" in str(getattr(array, "dtype", ""))
    least = LARGE_INDEX_BYTES if indices else LARGE_BYTES
    return bool(getattr(array, "nbytes", least) >= least)
