"""What batches are made with: tensors over the memory of arrays, and torch's collate functions."""

from __future__ import annotations

from operator import attrgetter
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.utils.data import default_collate, default_convert
from torch.utils.data._utils import collate

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

__all__ = [
    "Tensor",
    "array_of",
    "default_collate",
    "default_convert",
    "dense_nbytes",
    "is_extended",
    "is_shared",
    "stack_into",
    "tensor_of",
]

# By name, not by a look at the map: it may be extended before threadloader is imported.
_OWN = {
    collate.collate_tensor_fn,
    collate.collate_numpy_array_fn,
    collate.collate_numpy_scalar_fn,
    collate.collate_float_fn,
    collate.collate_int_fn,
    collate.collate_str_fn,
}
_ENTRIES = 7  # str and bytes share a function; a canary test tells when torch has more

tensor_of = torch.from_numpy
_dtype = attrgetter("dtype")


def is_extended() -> bool:
    """Whether ``default_collate_fn_map`` was changed, as torch documents for types of one's own.

    Only torch's function knows then what a batch becomes.
    """
    functions = collate.default_collate_fn_map
    return len(functions) != _ENTRIES or not _OWN.issuperset(functions.values())


def array_of(tensor: Tensor) -> NDArray[Any] | None:
    """Return the tensor's memory as an array; None where NumPy has no such thing."""
    try:
        return tensor.numpy()
    except (TypeError, RuntimeError):  # bfloat16, sparse, another device, requires grad ...
        return None


def stack_into(tensors: Sequence[Tensor], rows: NDArray[Any]) -> bool:
    """Write tensors into an array, exactly; return False if one of them does not fit.

    Nothing is converted or broadcast.  A tensor that is not dense, or in the memory of a device, or
    that requires grad, does not fit.

    Args:
        tensors: At least one.
        rows: The array, ``(len(tensors), *shape)``; some of it may be written in any case.
    """
    out = torch.from_numpy(rows)
    # stack() compares the shapes with one another only, and would resize what it writes into.  It
    # would convert a dtype.  All else it refuses itself (conformance tests).
    if tensors[0].shape != out.shape[1:] or set(map(_dtype, tensors)) != {out.dtype}:
        return False
    try:
        torch.stack(tensors, out=out)  # type: ignore[arg-type]  # any sequence will do
    except RuntimeError:  # also NotImplementedError
        return False
    return True


def dense_nbytes(tensor: Tensor) -> int:
    """Return the bytes of a dense tensor's elements; 0 of a sparse or packed one."""
    return tensor.nbytes if tensor.layout is torch.strided else 0


def is_shared(value: object) -> bool:
    """Whether ``value`` is a tensor in memory that processes share."""
    return isinstance(value, Tensor) and value.is_shared()  # type: ignore[no-untyped-call]
