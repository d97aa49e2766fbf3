"""`_torch` where torch is not installed: the same names stand for its absence.

For a type checker its classes are others than torch's.
"""

from __future__ import annotations

from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Generic, NoReturn, TypeVar

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from contextlib import ExitStack

    from threadloader._torch.device import Device, TargetDevice

T_co = TypeVar("T_co", covariant=True)

BATCHING = DRAWING = SEEDED = SEQUENTIAL = ()
CONTENTS: Mapping[type, str] = MappingProxyType({})


def _nothing(*_: Any) -> None:
    """Return None, or do nothing: there is none of it."""


def _no(*_: Any) -> bool:
    """Return False: nothing is so."""
    return False


def _missing(*_: Any, **__: Any) -> NoReturn:
    msg = "this needs torch: pip install torch (extra: torch)"
    raise ModuleNotFoundError(msg, name="torch")


open_rank_store = rank_and_world = _nothing
restore_grad = teach_random = use_threads = _nothing
is_extended = is_pipe = is_subset = is_trained = _no
may_be_trained = owns_plain_memory = _no
array_of = bytes_of_storage = dense_nbytes = stack_into = storage_of = storage_over = _missing
tensor_of = view_of_storage = _missing
default_collate = default_convert = can_pin = empty_pinned = pinned = _missing
generator_state = permutations = set_generator_state = _missing
get_worker_info = teach_worker_info = _missing


@dataclass(frozen=True, slots=True)
class WorkerInfo:
    """The description of a worker, with the attributes of torch's class of this name."""

    id: int
    num_workers: int
    seed: int
    dataset: Any
    rng: Any = None
    worker_method: str = "thread"


make_worker_info = WorkerInfo


def grad_enabled() -> bool:
    """Return True: nobody can switch it off."""
    return True


def draw_base_seed(generator: Any) -> int:  # noqa: ARG001  # same signature as with torch
    """Draw 63 bits from NumPy's global state, which also decides the order."""
    return int(np.random.randint(1 << 63, dtype=np.uint64))  # noqa: NPY002


def new_generator(seed: int) -> np.random.Generator:
    """Return a generator for samplers, with a seed."""
    return np.random.default_rng(seed)


def open_device(value: Any) -> TargetDevice:
    """Return a device that is not torch's, or None for the CPU; refuse all others."""
    if hasattr(value, "receive"):
        device: Device = value
        return device
    if value == "cpu":
        return None
    msg = f"device={value!r} needs torch: pip install torch (extra: torch)"
    raise ModuleNotFoundError(msg, name="torch")


def has_getitem(dataset: object) -> bool:
    """Whether a dataset gives single samples."""
    return hasattr(dataset, "__getitem__")


def tensors_in(_: object) -> tuple[()]:
    """Return no tensors: there is no `TensorDataset`."""
    return ()


def gives_whole_batches(dataset: object) -> bool:
    """Whether ``dataset`` has a ``__getitems__``; torch's wrappers do not exist."""
    return bool(getattr(dataset, "__getitems__", None))


def inherited_modes() -> Callable[[ExitStack], None]:
    """Return a function that does nothing."""
    return _nothing


_FIXED = frozenset(
    {"batch_size", "batch_sampler", "sampler", "drop_last", "dataset", "persistent_workers"}
)


class Tensor:
    """A type that no object has."""


class Generator:
    """A type that no object has."""


class Dataset(Generic[T_co]):
    """The base of this package's map-style datasets, in place of torch's."""


class IterableDataset(Dataset[T_co]):
    """The base of this package's iterable datasets; each worker reads a replica."""


PlainIterable = IterableDataset


class DataLoader(Generic[T_co]):
    """Checks and keeps torch's arguments as torch's class of this name does, with its messages.

    Args:
        given: All of `torch.utils.data.DataLoader`, by name.  Samplers are left as they are given.

    Raises:
        ValueError: An argument has a wrong value, or excludes another.
    """

    def __init__(self, **given: Any) -> None:
        _check(given)
        del given["shuffle"]  # a sampler stands for it
        vars(self).update(given, _protected=True)
        if given["batch_sampler"] is not None:
            vars(self)["batch_size"] = None

    def __setattr__(self, name: str, value: Any) -> None:
        if name in _FIXED and getattr(self, "_protected", False):
            kind = type(self).__name__
            msg = f"{name} attribute should not be set after {kind} is initialized"
            raise ValueError(msg)
        super().__setattr__(name, value)


def _check(given: Mapping[str, Any]) -> None:
    """Raise the errors of `DataLoader`.

    Args:
        given: Its arguments, by name.
    """
    workers, size, ahead = given["num_workers"], given["batch_size"], given["prefetch_factor"]
    shuffle, sampler, drop_last = given["shuffle"], given["sampler"], given["drop_last"]
    ordered = size != 1 or shuffle or sampler is not None or drop_last
    _refuse(
        workers < 0,
        "num_workers option should be non-negative; use num_workers=0 to disable multiprocessing.",
    )
    _refuse(given["timeout"] < 0, "timeout option should be non-negative")
    _refuse(
        workers == 0 and ahead is not None,
        "prefetch_factor option could only be specified in multiprocessing."
        "let num_workers > 0 to enable multiprocessing, otherwise set prefetch_factor to None.",
    )
    _refuse(ahead is not None and ahead < 0, "prefetch_factor option should be non-negative")
    _refuse(
        given["persistent_workers"] and workers == 0,
        "persistent_workers option needs num_workers > 0",
    )
    _refuse(sampler is not None and shuffle, "sampler option is mutually exclusive with shuffle")
    _refuse(
        given["batch_sampler"] is not None and ordered,
        "batch_sampler option is mutually exclusive with batch_size, shuffle, sampler, "
        "and drop_last",
    )
    _refuse(
        size is None and drop_last,
        "batch_size=None option disables auto-batching and is mutually exclusive with drop_last",
    )
    _refuse(
        size is not None and (type(size) is not int or size <= 0),
        f"batch_size should be a positive integer value, but got batch_size={size}",
    )


def _refuse(wrong: object, message: str) -> None:
    if wrong:
        raise ValueError(message)
