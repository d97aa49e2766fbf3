"""torch's random functions, redirected without the private names that `random_ops` needs.

A mode that sees every call of a torch function from Python, about 1 us each, and adds the
generator to calls that take one.  It misses random numbers that are drawn below Python: by
dropout, `torch.nn.init` and scripted code.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeVar

import torch
from torch.overrides import TorchFunctionMode

from threadloader._lifetime.dropping import DROPPED
from threadloader._torch.random_ops import on_cpu

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

__all__ = ["OperatorsByMode"]

T = TypeVar("T")

_FACTORIES = ("rand", "randn", "randint", "randperm")  # on the CPU by default
_OF_TENSORS = ("bernoulli", "binomial", "multinomial", "normal", "poisson")
_METHODS = (
    "bernoulli",
    "bernoulli_",
    "cauchy_",
    "exponential_",
    "geometric_",
    "log_normal_",
    "multinomial",
    "normal_",
    "random_",
    "uniform_",
)


_LIKE = ("rand_like", "randn_like")  # since torch 2.10


class OperatorsByMode:
    """Redirects torch functions by a `TorchFunctionMode`.

    Args:
        here: As for `random_ops.OperatorsByKey`.

    Threads:
        all: any; nothing changes after `__init__`.
    """

    def __init__(self, here: Any) -> None:
        self._here = here
        self._functions = frozenset(
            [getattr(torch, name) for name in (*_FACTORIES, *_OF_TENSORS)]
            + [getattr(torch.Tensor, name) for name in _METHODS]
            + [getattr(torch, name) for name in _LIKE if _takes_generator(getattr(torch, name))]
        )

    @contextmanager
    def redirecting(self) -> Iterator[None]:
        """Let random functions that the calling thread calls draw from its stream."""
        with _Mode(self._here, self._functions):
            yield

    def redirected(self, function: Callable[..., T], *args: Any) -> T:
        """Call a function, in the calling thread, as in `redirecting`."""
        try:
            with _Mode(self._here, self._functions):
                return function(*args)
        finally:
            function, args = DROPPED, ()  # an error keeps this frame

    def stop(self) -> None:
        """Do nothing: without a stream the mode changes nothing."""


class _Mode(TorchFunctionMode):
    def __init__(self, here: Any, functions: frozenset[Any]) -> None:
        super().__init__()
        self._here = here
        self._functions = functions

    def __torch_function__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        if function in self._functions and kwargs.get("generator") is None:
            stream = self._here.stream
            if stream is not None and _draws_on_cpu(args, kwargs):
                kwargs = {**kwargs, "generator": stream.torch_generator}
        return function(*args, **kwargs)


def _takes_generator(like: Any) -> bool:
    try:
        like(torch.empty(1, device="cpu"), generator=torch.Generator())
    except TypeError:
        return False
    return True


def _draws_on_cpu(args: Any, kwargs: Any) -> bool:
    """Whether a call draws on the CPU."""
    if args and isinstance(args[0], torch.Tensor):
        return args[0].is_cpu
    return on_cpu(kwargs.get("device"))
