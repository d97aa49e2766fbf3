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
    "stacked",
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
# A tensor of so many bytes, or fewer, is copied once more in less time than a look at its dtype
# takes: 45 ns (batches of 64 to 2,048, on 3.11 and 3.13t).
SMALL_NBYTES = 512
_ENTRIES = 7  # str and bytes share a function; a canary test tells when torch has more

tensor_of = torch.from_numpy
_dtype = attrgetter("dtype")


def is_extended() -> bool:
    """Whether ``default_collate_fn_map`` was changed, as torch documents for types of one's own.

    Only torch's function knows then what a batch becomes.  A subclass of `Tensor` that was added
    changes nothing for others, and its own instances are not collated here: MONAI adds one as soon
    as a loader of its own makes a batch.
    """
    functions = collate.default_collate_fn_map
    if len(functions) != _ENTRIES:
        functions = {
            kind: function
            for kind, function in functions.copy().items()
            if not (isinstance(kind, type) and issubclass(kind, Tensor) and kind is not Tensor)
        }
    return len(functions) != _ENTRIES or not _OWN.issuperset(functions.values())


def array_of(tensor: Tensor) -> NDArray[Any] | None:
    """Return the tensor's memory as an array; None where NumPy has no such thing."""
    try:
        return tensor.numpy()
    except (TypeError, RuntimeError):  # bfloat16, sparse, another device, requires grad ...
        return None


def stack_into(tensors: Sequence[Tensor], rows: NDArray[Any], *, promotes: bool) -> bool:
    """Write tensors into an array; return False if they do not fit.

    They are not broadcast.  One that is not dense, or in the memory of a device, or that requires
    grad, does not fit, and neither does one of another dtype, unless ``promotes``.

    Args:
        tensors: At least one.
        rows: The array, ``(len(tensors), *shape)``; some of it may be written in any case.
        promotes: Whether some may have another dtype, if torch makes a batch of this one of them
            all: it saves a look at each.
    """
    first, out = tensors[0], torch.from_numpy(rows)
    # stack() compares the shapes with one another only, and would resize what it writes into.  All
    # else that does not fit it refuses itself (conformance tests), but another dtype.
    if first.dtype != out.dtype or first.shape != out.shape[1:] or not first.is_cpu:
        return False
    try:
        if promotes and first.nbytes <= SMALL_NBYTES:
            stacked = torch.stack(tensors)  # type: ignore[arg-type]  # any sequence will do
            if stacked.dtype != out.dtype or stacked.requires_grad or not _is_plain(stacked):
                return False
            out.copy_(stacked)
        elif set(map(_dtype, tensors)) == {out.dtype}:
            torch.stack(tensors, out=out)  # type: ignore[arg-type]  # the same
        else:
            return False
    except RuntimeError:  # also NotImplementedError
        return False
    return True


def stacked(tensors: Sequence[Tensor], nbytes: int) -> Tensor | None:
    """Return what `default_collate` makes of tensors; None if that has another size, or fails.

    Args:
        tensors: At least one; the first is no subclass of `Tensor`.
        nbytes: Of the result.
    """
    try:
        made = torch.stack(tensors)  # type: ignore[arg-type]  # any sequence will do
        # As where tensors are stacked into given memory, whatever strides they have.
        return made.contiguous() if made.nbytes == nbytes else None
    except (RuntimeError, TypeError):  # default_collate will raise it again
        return None


def _is_plain(tensor: Tensor) -> bool:
    return tensor.is_cpu and tensor.layout is torch.strided


def dense_nbytes(tensor: Tensor) -> int:
    """Return the bytes of a dense tensor's elements; 0 of a sparse or packed one."""
    return tensor.nbytes if tensor.layout is torch.strided else 0


def is_shared(value: object) -> bool:
    """Whether ``value`` is a tensor in memory that processes share."""
    return isinstance(value, Tensor) and value.is_shared()  # type: ignore[no-untyped-call]
