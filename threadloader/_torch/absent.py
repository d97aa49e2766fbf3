"""The names of `_torch` where torch is not installed."""

from __future__ import annotations

from contextlib import nullcontext
from typing import TYPE_CHECKING, Any, NoReturn

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager

__all__ = [
    "DataLoader",
    "Generator",
    "IterableDataset",
    "Tensor",
    "array_of",
    "arrays_of",
    "default_collate",
    "default_convert",
    "draw_base_seed",
    "gives_whole_batches",
    "inherited_modes",
    "is_dataset",
    "is_extended",
    "make_batch_sampler",
    "make_sampler",
    "tensor_of",
]


class Tensor:
    """A type that no object has."""


class IterableDataset:
    """A type that no object has."""


class DataLoader:
    """A type that no object has."""


class Generator:
    """A type that no object has."""


def is_dataset(value: object) -> bool:  # noqa: ARG001  # same signature as with torch
    """Return False: torch's Dataset does not exist."""
    return False


def gives_whole_batches(dataset: object) -> bool:
    """Whether ``dataset`` has a ``__getitems__``; torch's wrappers do not exist."""
    return bool(getattr(dataset, "__getitems__", None))


def inherited_modes() -> Callable[[], AbstractContextManager[None]]:
    """Return a context that changes nothing."""
    return nullcontext


def is_extended() -> bool:
    """Return False: there is no map of torch's to extend."""
    return False


def _missing(*_: Any, **__: Any) -> NoReturn:
    msg = "torch is not installed"
    raise ModuleNotFoundError(msg, name="torch")


array_of = arrays_of = tensor_of = _missing
default_collate = default_convert = _missing
draw_base_seed = make_batch_sampler = make_sampler = _missing
