"""torch's random operators, redirected to the calling thread's stream.

Each operator with a ``generator`` gets a kernel on a dispatch key that torch itself has no use
for; all other operators fall through.  The key counts only in threads that include it, so the
rest of the process neither changes nor gets slower.  Dropout, initialisers, distributions,
scripted code and torchvision's transforms all end in these operators.

This uses names that torch does not promise, so it is tried once.  Where it fails, operators are
not redirected, and the user is told.
"""

from __future__ import annotations

from contextlib import contextmanager
from threading import RLock
from typing import TYPE_CHECKING, Any, TypeVar

import torch

from threadloader._lifetime.dropping import DROPPED

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

__all__ = ["OperatorsByKey"]

T = TypeVar("T")

_NAME = "TESTING_ONLY_GenericMode"
# Names of the operators that take a generator: to ask all 3,600 operators takes 40 to 150 ms.
PACKETS = (
    "_fused_dropout",
    "_sample_dirichlet",
    "_standard_gamma",
    "bernoulli",
    "bernoulli_",
    "binomial",
    "cauchy",
    "cauchy_",
    "exponential",
    "exponential_",
    "geometric",
    "geometric_",
    "log_normal",
    "log_normal_",
    "multinomial",
    "normal",
    "normal_",
    "normal_functional",
    "poisson",
    "rand",
    "rand_like",
    "randint",
    "randint_like",
    "randn",
    "randn_like",
    "random",
    "random_",
    "randperm",
    "rrelu",
    "rrelu_",
    "rrelu_with_noise",
    "rrelu_with_noise_",
    "rrelu_with_noise_functional",
    "uniform",
    "uniform_",
)
# Those that are methods of tensors: to call a method is faster than to hand its arguments on with
# a set of keys.
_METHODS = frozenset(
    {"bernoulli_", "cauchy_", "exponential_", "geometric_", "log_normal_", "normal_", "random_"}
    | {"uniform_"}
)
MOST_KEPT = 1024  # Python objects of generators that are kept, 5 KB each with their generator


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
        self._lock = RLock()  # a finalizer that comes up inside may draw from another generator
        # All below that changes: guarded by _lock; read without it, as reading a dict is atomic on
        # both builds.
        self._kept: dict[int, Any] = {}
        self._here = here
        self._key = torch._C._dispatch_key_parse(_NAME)
        self._include: Any = torch._C._dispatch_tls_set_dispatch_key_included
        self._is_included: Any = torch._C._dispatch_tls_is_dispatch_key_included
        new_library: Any = torch.library.Library
        fallback, library = new_library("_", "IMPL", _NAME), new_library("aten", "IMPL", _NAME)
        fallback.fallback(torch.library.fallthrough_kernel)
        for name, schema in _random_operators():
            packet = name.partition(".")[0]
            if packet in _METHODS:
                library.impl(name, self._kernel_in_place(getattr(torch.Tensor, packet)))
            else:
                library.impl(name, self._kernel(name, schema.arguments), with_keyset=True)
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

    def _kernel_in_place(self, method: Any) -> Callable[..., Any]:
        """Return the function that a thread that includes the key calls for a method of tensors."""
        here, key, include, own_of = self._here, self._key, self._include, self._own_of

        def kernel(tensor: Any, *args: Any, generator: Any = None) -> Any:
            stream = here.stream
            if generator is not None:
                generator = own_of(generator, stream, tensor)
            elif stream is not None and tensor.is_cpu:
                generator = stream.torch_generator
            # Operators that this one calls get its generator.
            include(key, False)
            try:
                return method(tensor, *args, generator=generator)
            finally:
                include(key, True)

        return kernel

    def _kernel(self, name: str, arguments: Any) -> Callable[..., Any]:
        """Return the function that a thread that includes the key calls, with the set of keys.

        Args:
            name: Of the operator, with its overload.
            arguments: Of its schema.
        """
        place = next(n for n, argument in enumerate(arguments) if argument.name == "generator")
        on_tensor = str(arguments[0].type) == "Tensor"
        here, own_of = self._here, self._own_of
        key, keys_without, include = self._key, torch._C.DispatchKeySet(self._key), self._include
        redispatch: Any = None

        def kernel(keys: Any, *args: Any, **kwargs: Any) -> Any:
            nonlocal redispatch
            if redispatch is None:  # not before: to look all operators up takes long
                packet, _, overload = name.partition(".")
                operator = getattr(getattr(torch.ops.aten, packet), overload or "default")
                redispatch = operator._handle.redispatch_boxed
            stream = here.stream
            given = args[place] if len(args) > place else kwargs.get("generator")
            if given is not None:
                given = own_of(given, stream, args[0] if on_tensor else kwargs.get("device"))
            elif stream is not None and (
                args[0].is_cpu if on_tensor else _on_cpu(kwargs.get("device"))
            ):  # an accelerator's generator is left alone
                given = stream.torch_generator
            if len(args) > place:
                args = (*args[:place], given, *args[place + 1 :])
            else:
                kwargs["generator"] = given
            # Operators that this one calls get its generator.
            include(key, False)
            try:
                return redispatch(keys - keys_without, *args, **kwargs)
            finally:
                include(key, True)

        return kernel

    def _own_of(self, given: Any, stream: Any, place: Any) -> Any:
        """Return the generator to draw from in place of the one that an operator is given.

        Args:
            given: A generator.
            stream: The calling thread's, or None.
            place: The tensor, or the device, on which the operator draws.
        """
        if id(given) not in self._kept:
            self._keep(given)
        # Kernels see another object for torch's global generator.
        default: Any = torch.default_generator
        if stream is None or given._cdata != default._cdata:
            return given
        cpu = place.is_cpu if isinstance(place, torch.Tensor) else _on_cpu(place)
        return stream.torch_generator if cpu else given

    def _keep(self, generator: Any) -> None:
        oldest = None  # dropped after the lock is released
        with self._lock:
            self._kept[id(generator)] = generator
            if len(self._kept) > MOST_KEPT:
                oldest = self._kept.pop(next(iter(self._kept)), None)
        del oldest


def _on_cpu(device: Any) -> bool:
    """Whether a factory function with this ``device`` makes a tensor on the CPU."""
    return device is None or torch.device(device).type == "cpu"


def _random_operators() -> Iterator[tuple[str, Any]]:
    """Yield the names and schemas of all operators that take a generator."""
    for packet in PACKETS:
        for schema in torch._C._jit_get_schemas_for_operator(f"aten::{packet}"):
            if any(argument.name == "generator" for argument in schema.arguments):
                overload = schema.overload_name
                yield f"{packet}.{overload}" if overload else packet, schema
