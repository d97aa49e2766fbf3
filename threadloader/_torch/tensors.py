"""CPU tensors as NumPy arrays over the same memory, and back."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

__all__ = ["Tensor", "array_of", "arrays_of", "dense_nbytes", "is_shared", "tensor_of"]

tensor_of = torch.from_numpy


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
