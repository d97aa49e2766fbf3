"""Nested batches, leaf by leaf, in the containers that torch's ``pin_memory=True`` keeps."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, MutableMapping, MutableSequence, Sequence
from typing import Any

from torch import Tensor

__all__ = ["mapped"]


def mapped(batch: Any, change: Callable[[Any], Any], method: str = "to") -> Any:
    """Return a batch with each leaf changed.

    Mappings and sequences keep their type, if it can be made again.  Leaves are strings, tensors,
    and objects with the method.

    Args:
        batch: Any structure.
        change: Called with each leaf.
        method: An object that has it is a leaf, also if it is a container.

    Source: the cases that ``torch.utils.data._utils.pin_memory.pin_memory`` tells apart.
    """
    if isinstance(batch, (Tensor, str, bytes)) or hasattr(batch, method):
        return change(batch)
    if isinstance(batch, Mapping):
        return _mapping(batch, {key: mapped(value, change, method) for key, value in batch.items()})
    if isinstance(batch, tuple):
        parts = [mapped(part, change, method) for part in batch]
        kind = type(batch)
        return kind(*parts) if hasattr(batch, "_fields") else kind(parts)
    if isinstance(batch, Sequence):
        return _sequence(batch, [mapped(part, change, method) for part in batch])
    return change(batch)


def _mapping(batch: Mapping[Any, Any], parts: dict[Any, Any]) -> Any:
    try:
        if isinstance(batch, MutableMapping):
            # A copy has the type's further attributes, a default factory say.
            clone = copy.copy(batch)
            clone.update(parts)
            return clone
        return type(batch)(parts)  # type: ignore[call-arg]  # as most mappings can be made
    except TypeError:
        return parts


def _sequence(batch: Sequence[Any], parts: list[Any]) -> Any:
    try:
        if isinstance(batch, MutableSequence):
            clone = copy.copy(batch)
            for position, part in enumerate(parts):
                clone[position] = part
            return clone
        return type(batch)(parts)  # type: ignore[call-arg]  # the same
    except TypeError:
        return parts
