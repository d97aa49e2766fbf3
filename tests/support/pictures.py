"""What a value is, as plain tuples: two values are the same if their pictures are equal.

Types, dtypes, shapes, strides, values and the order of keys all count; numbers are compared by
their repr, which tells -0.0 from 0.0 and finds NaN equal to itself.  Keys are compared as a dict
does, to which 1 and True are one key.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

try:
    import torch
except ModuleNotFoundError:
    torch = None

__all__ = ["outcomes", "picture", "told_by"]

Picture = Any  # nested tuples, equal for equal values
MOST = 1000  # outcomes of an epoch: one that went on for ever would be a failure, not a hang


def picture(value: Any) -> Picture:
    """Return what is to be equal in two values that are the same."""
    kind = type(value)
    if torch is not None and isinstance(value, torch.Tensor):
        return _tensor(value)
    if isinstance(value, (np.ndarray, np.generic)):
        return kind, value.dtype.str, value.shape, repr(value.tolist())
    if isinstance(value, Mapping):
        return kind, [(key, picture(value[key])) for key in value]
    if isinstance(value, Sequence) and not isinstance(value, (str, bytes, range)):
        return kind, [picture(part) for part in value]
    return kind, repr(value)


def told_by(batches: Iterable[Any], see: Callable[[Any], Any]) -> list[Any]:
    """Return what each next() gives: batches as they are seen, and errors as they are."""
    told: list[Any] = []
    iterator = iter(batches)
    for _ in range(MOST):
        try:
            told.append(see(next(iterator)))
        except StopIteration:
            return told
        except Exception as error:  # noqa: BLE001  # what is told
            told.append(error)
    return [*told, "more"]


def outcomes(loader: Iterable[Any]) -> list[Picture]:
    """Return what each next() of an epoch gives: pictures, or types and texts of errors."""
    told = told_by(loader, picture)
    return [(type(each), str(each)) if isinstance(each, Exception) else each for each in told]


def _tensor(tensor: torch.Tensor) -> Picture:
    if tensor.layout is not torch.strided:
        return type(tensor), repr(tensor)
    values, shape = repr(tensor.tolist()), tuple(tensor.shape)
    return type(tensor), tensor.dtype, shape, tensor.stride(), tensor.requires_grad, values
