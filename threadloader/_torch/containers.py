"""Containers of a batch, made again with other parts, as torch makes them; this needs no torch."""

from __future__ import annotations

import copy
from collections.abc import Mapping, MutableMapping, MutableSequence, Sequence
from typing import Any

__all__ = ["remade"]


def remade(container: Mapping[Any, Any] | Sequence[Any], parts: Any) -> Any:
    """Return a container of the same type with other parts, if its type can be made again.

    Args:
        container: It is not changed.
        parts: A dict or a list, which is returned if the type can't; with the same keys, or length.

    Source: the cases are those of torch's ``default_collate`` and ``pin_memory``.
    """
    try:
        if not isinstance(container, (MutableMapping, MutableSequence)):
            return type(container)(parts)  # type: ignore[call-arg]  # as most can be made
        twin: Any = copy.copy(container)  # it has further attributes, a default factory say
        for key, part in parts.items() if isinstance(parts, dict) else enumerate(parts):
            twin[key] = part
    except TypeError:
        return parts
    return twin
