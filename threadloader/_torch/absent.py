"""The functions of `_torch` where torch is not installed."""

from __future__ import annotations

from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

import numpy as np

from threadloader._torch.absent_types import Dataset

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from contextlib import ExitStack

    from threadloader._torch.device import Device, TargetDevice

__all__ = [
    "BATCHING",
    "CONTENTS",
    "DRAWING",
    "SEEDED",
    "SEQUENTIAL",
    "array_of",
    "as_iterable_dataset",
    "can_pin",
    "default_collate",
    "default_convert",
    "default_generator",
    "dense_nbytes",
    "draw_base_seed",
    "draw_shared_seed",
    "empty_pinned",
    "generator_state",
    "get_worker_info",
    "gives_whole_batches",
    "grad_enabled",
    "has_getitem",
    "inherited_modes",
    "is_dataset",
    "is_extended",
    "is_module",
    "is_shared",
    "is_subset",
    "make_worker_info",
    "new_generator",
    "open_device",
    "open_rank_store",
    "permutations",
    "permutes",
    "pinned",
    "prepare_pipe",
    "rank_and_world",
    "restore_grad",
    "set_generator_state",
    "stack_into",
    "stacked",
    "teach_num_threads",
    "teach_random",
    "teach_worker_info",
    "tensor_of",
    "tensors_in",
    "unwrapped",
    "use_threads",
]


BATCHING: tuple[Any, ...] = ()
CONTENTS: Mapping[type, str] = MappingProxyType({})
DRAWING: tuple[Any, ...] = ()
SEEDED: tuple[Any, ...] = ()
SEQUENTIAL: tuple[Any, ...] = ()

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class WorkerInfo:
    """The description of a worker, with the attributes of torch's class of this name."""

    id: int
    num_workers: int
    seed: int
    dataset: Any
    rng: Any = None
    worker_method: str = "thread"


def make_worker_info(number: int, workers: int, seed: int, dataset: Any, rng: Any) -> WorkerInfo:
    """Return the description of a worker."""
    return WorkerInfo(number, workers, seed, dataset, rng)


def teach_random(here: Any) -> None:
    """Return None: there are no operators to redirect."""


def grad_enabled() -> bool:
    """Return True: nobody can switch it off."""
    return True


def restore_grad(enabled: bool) -> None:  # same signature as with torch
    """Do nothing: there are no gradients."""


def use_threads(number: int) -> None:  # the same
    """Do nothing: there are no threads of torch's."""


def as_iterable_dataset(iterable: Any) -> Any:
    """Return ``iterable``: there is no class to wrap it in."""
    return iterable


def unwrapped(dataset: Any) -> Any:
    """Return ``dataset``: nothing is wrapped."""
    return dataset


def draw_shared_seed(dataset: object, generator: Any) -> None:  # the same
    """Return None: there are no pipes to seed."""


def default_generator() -> None:
    """Return None: there is none."""


def draw_base_seed(generator: Any) -> int:  # noqa: ARG001  # the same
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


def is_module(value: object) -> bool:  # noqa: ARG001  # same signature as with torch
    """Return False: there are none."""
    return False


def is_dataset(value: object) -> bool:
    """Whether ``value`` is a dataset of this package; torch's do not exist."""
    return isinstance(value, Dataset)


def has_getitem(dataset: object) -> bool:
    """Whether a dataset gives single samples."""
    return hasattr(dataset, "__getitem__")


def is_subset(dataset: object) -> bool:  # noqa: ARG001  # same signature as with torch
    """Return False: there is no `Subset`."""
    return False


def tensors_in(dataset: object) -> tuple[()]:  # noqa: ARG001  # the same
    """Return no tensors: there is no `TensorDataset`."""
    return ()


def permutes(sampler: object) -> bool:  # noqa: ARG001  # the same
    """Return False: there is no sampler of torch's."""
    return False


def gives_whole_batches(dataset: object) -> bool:
    """Whether ``dataset`` has a ``__getitems__``; torch's wrappers do not exist."""
    return bool(getattr(dataset, "__getitems__", None))


def inherited_modes() -> Callable[[ExitStack], None]:
    """Return a function that does nothing."""
    return lambda _: None


def open_rank_store() -> None:
    """Return None: there is no `torch.distributed`."""


def rank_and_world() -> None:
    """Return None: there is no `torch.distributed`."""


def is_shared(value: object) -> bool:  # noqa: ARG001  # same signature as with torch
    """Return False: there are no tensors."""
    return False


def is_extended() -> bool:
    """Return False: there is no map of torch's that could be extended."""
    return False


def _missing(*_: Any, **__: Any) -> NoReturn:
    msg = "this needs torch: pip install torch (extra: torch)"
    raise ModuleNotFoundError(msg, name="torch")


array_of = dense_nbytes = stack_into = stacked = tensor_of = _missing
default_collate = default_convert = can_pin = empty_pinned = pinned = _missing
generator_state = permutations = prepare_pipe = set_generator_state = _missing
get_worker_info = teach_worker_info = teach_num_threads = _missing
