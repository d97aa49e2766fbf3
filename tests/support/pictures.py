"""What a value is, as plain tuples: two values are the same if their pictures are equal.

Types, dtypes, shapes, strides, values and the order of keys all count; numbers are compared by
their repr, which tells -0.0 from 0.0 and finds NaN equal to itself.  Keys are compared as a dict
does, to which 1 and True are one key.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

try:
    import torch
except ModuleNotFoundError:
    torch = None

__all__ = ["outcomes", "picture"]

Picture = Any  # nested tuples, equal for equal values
MOST = 60  # outcomes of an epoch


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


def outcomes(loader: Iterable[Any]) -> list[Picture]:
    """Return what each next() of an epoch gives: pictures, or types and texts of errors."""
    told: list[Picture] = []
    iterator = iter(loader)
    for _ in range(MOST):
        try:
            told.append(picture(next(iterator)))
        except StopIteration:
            return told
        except Exception as error:  # noqa: BLE001  # what is told
            told.append((type(error), str(error)))
    return [*told, "more"]


def _tensor(tensor: torch.Tensor) -> Picture:
    if tensor.layout is not torch.strided:
        return type(tensor), repr(tensor)
    values, shape = repr(tensor.tolist()), tuple(tensor.shape)
    return type(tensor), tensor.dtype, shape, tensor.stride(), tensor.requires_grad, values
