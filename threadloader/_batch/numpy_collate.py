"""``default_collate`` for NumPy batches: torch's structure and errors, arrays for tensors.

It serves loaders without torch, or with ``output="numpy"``, and there only batches that do not go
the direct path.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from threadloader import _torch
from threadloader._torch.containers import remade

# The message of torch's default_collate, so that a search for either finds the same answers.
_UNSUPPORTED = (
    "default_collate: batch must contain tensors, numpy arrays, numbers, dicts or lists; found {}"
)


def numpy_collate(batch: Sequence[Any]) -> Any:
    """Collate samples into a batch as ``default_collate`` does, with arrays for tensors.

    Args:
        batch: Samples, at least 1.

    Returns:
        For arrays, tensors and numbers an array ``(len(batch), *shape)``; for str and bytes the
        batch itself; for containers the same container of collated parts (tuples become lists).

    Raises:
        TypeError: A sample has a part of another type, or an array of objects or strings.
        RuntimeError: Arrays differ in shape, or sequences in length.

    Source: the cases and their order are those of ``torch.utils.data.default_collate``.
    """
    first = batch[0]
    for kinds, collate in _CASES:
        if isinstance(first, kinds):
            return collate(first, batch)
    raise TypeError(_UNSUPPORTED.format(type(first)))


def numpy_convert(sample: Any) -> Any:
    """Return a single sample with its tensors as arrays, and everything else unchanged."""
    if isinstance(sample, _torch.Tensor):
        return sample.detach().numpy()
    kind = type(sample)
    if kind is dict:
        return {key: numpy_convert(part) for key, part in sample.items()}
    if kind is list or kind is tuple:
        return kind(map(numpy_convert, sample))
    if isinstance(sample, tuple) and hasattr(kind, "_fields"):
        return kind(*map(numpy_convert, sample))
    return sample


def _numbers(values: Any, dtype: Any = None) -> Any:
    """Return an array, but never one of objects or strings, which NumPy would make of a mix."""
    array = np.array(values)  # without dtype=, which makes a number of "2.5" and NaN of None
    if array.dtype == object:
        of_numpy = (np.ndarray, np.generic)
        values = [it.item() if isinstance(it, of_numpy) and it.ndim == 0 else it for it in values]
        kinds = set(map(type, values))
        if kinds & {float, complex} and kinds <= {bool, int, float, complex}:
            # An int beyond 64 bits, among numbers that have room for it.
            array = np.array([(complex if complex in kinds else float)(it) for it in values])
    if array.dtype.kind not in "?biufcmM":
        raise TypeError(_UNSUPPORTED.format(f"{values!r:.200}, which is no array of numbers"))
    return array if dtype is None else array.astype(dtype)


def _collate_arrays(first: Any, batch: Sequence[Any]) -> Any:
    if first.dtype.kind in "SUO":
        raise TypeError(_UNSUPPORTED.format(first.dtype))
    arrays = [part if isinstance(part, np.ndarray) else _numbers(part) for part in batch]
    for row, array in enumerate(arrays):
        if array.shape != first.shape:
            msg = (
                "stack expects each array to be equal size, but got "
                f"{list(first.shape)} at entry 0 and {list(array.shape)} at entry {row}"
            )
            raise RuntimeError(msg)
        if array.dtype.kind in "SUO":
            raise TypeError(_UNSUPPORTED.format(array.dtype))
    if any(isinstance(array, np.ma.MaskedArray) for array in arrays):
        stacked: Any = np.ma.stack(arrays)  # np.stack loses the masks in silence
        return stacked
    return np.stack(arrays)


def _collate_tensors(_: Any, batch: Sequence[Any]) -> Any:
    return _torch.default_collate(list(batch)).detach().numpy()


def _collate_mapping(first: Any, batch: Sequence[Any]) -> Any:
    return remade(first, {key: numpy_collate([sample[key] for sample in batch]) for key in first})


def _collate_sequence(first: Any, batch: Sequence[Any]) -> Any:
    if isinstance(first, tuple) and hasattr(first, "_fields"):
        return type(first)(*map(numpy_collate, zip(*batch, strict=False)))
    if any(len(sample) != len(first) for sample in batch):
        msg = "each element in list of batch should be of equal size"
        raise RuntimeError(msg)
    parts = [numpy_collate(column) for column in zip(*batch, strict=True)]
    return parts if isinstance(first, tuple) else remade(first, parts)


# In torch's order: the first kind that fits decides, so bool counts as int, str is no sequence.
_CASES: tuple[tuple[Any, Callable[[Any, Sequence[Any]], Any]], ...] = (
    (_torch.Tensor, _collate_tensors),
    (np.ndarray, _collate_arrays),
    ((np.bool_, np.number, np.datetime64), lambda _, batch: _numbers(batch)),
    (float, lambda _, batch: _numbers(batch, np.float64)),
    (int, lambda _, batch: _numbers(batch)),
    ((str, bytes), lambda _, batch: batch),
    (Mapping, _collate_mapping),
    (Sequence, _collate_sequence),
)
