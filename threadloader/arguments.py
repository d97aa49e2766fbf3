"""The arguments of `ThreadLoader`, checked: what is wrong is named, with its value.

Where torch refuses the same, the messages are torch's.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from threadloader import _torch
from threadloader.cores import default_threads

if TYPE_CHECKING:
    from threadloader.collate import Output

__all__ = [
    "check_callable",
    "check_choice",
    "check_dataset",
    "check_flag",
    "check_generator",
    "check_order",
    "count",
    "output_of",
    "workers_of",
]


def workers_of(threads: int | None, num_workers: int | None) -> int:
    """Return the number of worker threads that two names for it ask for."""
    named = {"threads": threads, "num_workers": num_workers}
    given = {count(name, value, at_least=0) for name, value in named.items() if value is not None}
    if len(given) > 1:
        msg = f"threads and num_workers are one setting, but got {threads} and {num_workers}"
        raise ValueError(msg)
    return given.pop() if given else default_threads()


def output_of(output: Output | None) -> Output:
    """Return what batches consist of."""
    if output is None:
        return "torch" if _torch.AVAILABLE else "numpy"
    check_choice("output", output, ("torch", "numpy"))
    if output == "torch" and not _torch.AVAILABLE:
        msg = "output='torch' needs torch: pip install threadloader[torch]"
        raise ModuleNotFoundError(msg, name="torch")
    return output


def check_dataset(dataset: Any) -> None:
    """Refuse what is not map-style."""
    if isinstance(dataset, _torch.IterableDataset) or not any(
        hasattr(dataset, name) for name in ("__getitem__", "__getitems__")
    ):
        msg = f"dataset must be map-style, with __getitem__, but got {type(dataset).__name__}"
        raise TypeError(msg)


def check_order(
    batch_size: int | None,
    shuffle: bool | None,
    sampler: Any,
    batch_sampler: Any,
    *,
    drop_last: bool,
) -> None:
    """Refuse samplers that can't be iterated, and options that exclude each other."""
    for name, value in (("sampler", sampler), ("batch_sampler", batch_sampler)):
        # __getitem__ alone makes an iterable, too.
        if (
            value is not None
            and not hasattr(value, "__iter__")
            and not hasattr(value, "__getitem__")
        ):
            msg = f"{name} must be iterable, but got {value!r}"
            raise TypeError(msg)
    if sampler is not None and shuffle:
        msg = "sampler option is mutually exclusive with shuffle"
        raise ValueError(msg)
    if batch_sampler is not None and (
        batch_size != 1 or shuffle or sampler is not None or drop_last
    ):
        msg = (
            "batch_sampler option is mutually exclusive with batch_size, shuffle, sampler, "
            "and drop_last"
        )
        raise ValueError(msg)
    if batch_size is None and drop_last:
        msg = (
            "batch_size=None option disables auto-batching and is mutually exclusive with drop_last"
        )
        raise ValueError(msg)


def count(name: str, value: int, *, at_least: int) -> int:
    """Return a whole number that was asked for."""
    if isinstance(value, bool) or not isinstance(value, (int, np.integer)):
        msg = f"{name} must be an int, but got {value!r}"
        raise TypeError(msg)
    if value < at_least:
        msg = f"{name} must be at least {at_least}, but got {value}"
        raise ValueError(msg)
    return int(value)


def check_flag(name: str, value: Any) -> None:
    """Refuse what is neither true nor false."""
    if value is not None and not isinstance(value, (bool, int, np.bool_)):
        msg = f"{name} must be a bool, but got {value!r}"
        raise TypeError(msg)


def check_generator(generator: Any) -> None:
    """Refuse what draws no permutations."""
    kinds = (_torch.Generator, np.random.Generator)
    if generator is not None and not isinstance(generator, kinds):
        msg = (
            f"generator must be a torch.Generator or numpy.random.Generator, but got {generator!r}"
        )
        raise TypeError(msg)


def check_callable(name: str, value: Any) -> None:
    """Refuse what can't be called."""
    if value is not None and not callable(value):
        msg = f"{name} must be callable, but got {value!r}"
        raise TypeError(msg)


def check_choice(name: str, value: Any, choices: tuple[str, ...]) -> None:
    """Refuse what is none of the choices."""
    if value not in choices:
        msg = f"{name} must be one of {', '.join(choices)}, but got {value!r}"
        raise ValueError(msg)
