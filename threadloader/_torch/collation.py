"""What batches are made with: tensors over the memory of arrays, and torch's collate functions."""

from __future__ import annotations

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
    "arrays_of",
    "default_collate",
    "default_convert",
    "dense_nbytes",
    "is_extended",
    "is_shared",
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


def arrays_of(tensors: Sequence[Tensor]) -> list[NDArray[Any]]:
    """Return each tensor's memory as an array; no tensor is made.

    Raises:
        TypeError: NumPy lacks the dtype, layout or device of one.
        RuntimeError: One requires grad, or has a pending conjugation or negation.
    """
    return list(map(Tensor.numpy, tensors))


def dense_nbytes(tensor: Tensor) -> int:
    """Return the bytes of a dense tensor's elements; 0 of a sparse or packed one."""
    return tensor.nbytes if tensor.layout is torch.strided else 0


def is_shared(value: object) -> bool:
    """Whether ``value`` is a tensor in memory that processes share."""
    return isinstance(value, Tensor) and value.is_shared()  # type: ignore[no-untyped-call]
