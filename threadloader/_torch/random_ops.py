"""torch's random operators, redirected to the calling thread's stream.

Each operator with a ``generator`` gets a kernel on a dispatch key that torch itself has no use
for; all other operators fall through.  The key counts only in threads that include it, so the
rest of the process neither changes nor gets slower.  Dropout, initialisers, distributions,
scripted code and torchvision's transforms all end in these operators.

This uses names that torch does not promise, so it is tried once; `random_mode` takes its place
where it fails.
"""

from __future__ import annotations

from contextlib import contextmanager
from threading import Lock
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import torch

from threadloader._lifetime.dropping import DROPPED

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from contextlib import AbstractContextManager

__all__ = ["OperatorsByKey", "RandomOperators", "on_cpu"]

T = TypeVar("T")

_NAME = "TESTING_ONLY_GenericMode"
MOST_KEPT = 1024  # Python objects of generators that are kept, 5 KB each with their generator


class RandomOperators(Protocol):
    """The redirection of torch's random operators to the calling thread's stream.

    Threads:
        all: any.
    """

    def redirecting(self) -> AbstractContextManager[None]:
        """Return a context in which the calling thread's operators draw from its stream."""

    def redirected(self, function: Callable[..., T], *args: Any) -> T:
        """Call a function, in the calling thread, as in `redirecting`."""

    def stop(self) -> None:
        """Redirect no operators in the calling thread any more."""


class OperatorsByKey:
    """Redirects operators by kernels on a dispatch key; the kernels live as long as this object.

    Args:
        here: A `threading.local`; its ``stream`` has the thread's ``torch_generator``, or is None.

    Raises:
        Exception: torch lacks one of these names.

    Invariants, whenever ``_lock`` is not held:
        1. The objects that kernels were given for generators live on in ``_kept``, the last
           `MOST_KEPT` of them.  torch makes such an object for a generator that has none and
           notes it there, without a lock: were it to die, another thread that draws from the same
           generator could be about to use it, and crash on a free-threaded build.
           Source: ``THPGenerator_Wrap`` in torch/csrc/Generator.cpp.

    Threads:
        all: any.
    """

    def __init__(self, here: Any) -> None:
        self._lock = Lock()
        # All below that changes: guarded by _lock; read without it, as reading a dict is atomic on
        # both builds.
        self._kept: dict[int, Any] = {}
        self._key = torch._C._dispatch_key_parse(_NAME)
        self._include: Any = torch._C._dispatch_tls_set_dispatch_key_included
        self._is_included: Any = torch._C._dispatch_tls_is_dispatch_key_included
        new_library: Any = torch.library.Library
        fallback, library = new_library("_", "IMPL", _NAME), new_library("aten", "IMPL", _NAME)
        fallback.fallback(torch.library.fallthrough_kernel)
        for name in _random_operators():
            packet, _, overload = name.partition(".")
            operator = getattr(getattr(torch.ops.aten, packet), overload or "default")
            library.impl(name, self._kernel(operator, here), with_keyset=True)
        self._libraries = fallback, library

    @contextmanager
    def redirecting(self) -> Iterator[None]:
        """Let random operators that the calling thread calls draw from its stream."""
        before = self._is_included(self._key)
        self._include(self._key, True)
        try:
            yield
        finally:
            self._include(self._key, before)

    def redirected(self, function: Callable[..., T], *args: Any) -> T:
        """Call a function, in the calling thread, as in `redirecting`."""
        # No context manager: Ctrl-C can come up in one before it has put back what was there.
        before = self._is_included(self._key)
        try:
            self._include(self._key, True)
            return function(*args)
        finally:
            self._include(self._key, before)
            function, args = DROPPED, ()  # an error keeps this frame

    def stop(self) -> None:
        """Redirect no operators in the calling thread any more."""
        self._include(self._key, False)

    def _kernel(self, operator: Any, here: Any) -> Callable[..., Any]:
        """Return the function that a thread that includes the key calls, with the set of keys."""
        arguments = operator._schema.arguments
        place = next(n for n, argument in enumerate(arguments) if argument.name == "generator")
        on_tensor = str(arguments[0].type) == "Tensor"
        redispatch = operator._handle.redispatch_boxed
        # Kernels see another object for torch's global generator.
        default: Any = torch.default_generator
        kept = self._kept
        key, keys_without, include = self._key, torch._C.DispatchKeySet(self._key), self._include

        def kernel(keys: Any, *args: Any, **kwargs: Any) -> Any:
            stream = here.stream
            given = args[place] if len(args) > place else kwargs.get("generator")
            if given is not None and id(given) not in kept:
                self._keep(given)
            if stream is None or (given is not None and given._cdata != default._cdata):
                pass
            elif not (args[0].is_cpu if on_tensor else on_cpu(kwargs.get("device"))):
                pass  # an accelerator's generator is left alone
            elif len(args) > place:
                args = (*args[:place], stream.torch_generator, *args[place + 1 :])
            else:
                kwargs["generator"] = stream.torch_generator
            # Operators that this one calls get its generator.
            include(key, False)
            try:
                return redispatch(keys - keys_without, *args, **kwargs)
            finally:
                include(key, True)

        return kernel

    def _keep(self, generator: Any) -> None:
        with self._lock:
            self._kept[id(generator)] = generator
            if len(self._kept) > MOST_KEPT:
                oldest = next(iter(self._kept))
                del self._kept[oldest]


def on_cpu(device: Any) -> bool:
    """Whether a factory function with this ``device`` makes a tensor on the CPU."""
    return device is None or torch.device(device).type == "cpu"


def _random_operators() -> Iterator[str]:
    """Yield the names of all operators that take a generator."""
    for full in torch._C._dispatch_get_all_op_names():
        namespace, _, name = full.partition("::")
        if namespace != "aten":
            continue
        packet, _, overload = full.partition(".")
        if any(argument.name == "generator" for argument in _arguments(packet, overload)):
            yield name


def _arguments(packet: str, overload: str) -> Any:
    return torch._C._get_schema(packet, overload).arguments
