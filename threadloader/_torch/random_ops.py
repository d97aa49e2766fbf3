"""torch's random operators, redirected to the calling thread's stream.

Each operator with a ``generator`` gets a kernel on a dispatch key that torch itself has no use
for; all other operators fall through.  The key counts only in threads that include it, so the
rest of the process neither changes nor gets slower.  Dropout, initialisers, distributions,
scripted code and torchvision's transforms all end in these operators.

`torch.manual_seed` and its like get their code exchanged, as they may have been imported long
ago (see `worker_info`).
"""

from __future__ import annotations

import inspect
from contextlib import contextmanager
from types import FunctionType
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

__all__ = ["KeyedGenerator", "redirect", "redirecting", "teach_random"]

_NAME = "TESTING_ONLY_GenericMode"
_KEY = torch._C._dispatch_key_parse(_NAME)
_KEYS = torch._C.DispatchKeySet(_KEY)
_include = torch._C._dispatch_tls_set_dispatch_key_included
_is_included = torch._C._dispatch_tls_is_dispatch_key_included
_default_cdata = torch.default_generator._cdata  # type: ignore[attr-defined]  # kernels see another object for it


def teach_random(here: Any) -> Any:
    """Install the kernels, and exchange the seeding functions' code.  Call once.

    Args:
        here: A `threading.local`; its ``stream`` has the thread's ``torch_generator``, or is None.

    Returns:
        What the kernels live as long as.
    """
    new_library: Any = torch.library.Library
    fallback = new_library("_", "IMPL", _NAME)
    fallback.fallback(torch.library.fallthrough_kernel)
    library = new_library("aten", "IMPL", _NAME)
    for name in _random_operators():
        packet, _, overload = name.partition(".")
        operator = getattr(getattr(torch.ops.aten, packet), overload or "default")
        library.impl(name, _kernel(operator, here), with_keyset=True)
    names: dict[str, Any] = {"_threadloader_streams": here}
    for name, code in _EXCHANGED.items():
        function = inspect.unwrap(getattr(torch.random, name))
        names[f"_threadloader_{name}"] = FunctionType(function.__code__, function.__globals__)
        vars(torch.random).update(names)
        function.__code__ = code
    return fallback, library


@contextmanager
def redirecting() -> Iterator[None]:
    """Let random operators that the calling thread calls draw from its stream."""
    before = _is_included(_KEY)
    redirect(True)
    try:
        yield
    finally:
        redirect(before)


def redirect(on: bool) -> None:
    """Let random operators that the calling thread calls draw from its stream, or no more."""
    _include(_KEY, on)


class KeyedGenerator:
    """A ``torch.Generator`` of the CPU that is set to a state of given words.

    ``manual_seed`` would keep 32 bits of a key: of 100,000 samples, two would likely share one.
    Source: ``CPUGeneratorImplStateLegacy`` in aten/src/ATen/CPUGeneratorImpl.cpp.
    """

    WORDS = 624  # of 32 bits, the state of a Mersenne twister
    _OFFSET = 24  # bytes: seed, words left, whether it is seeded, next word

    def __init__(self) -> None:
        self.generator = torch.Generator().manual_seed(0)
        self._state = self.generator.get_state()
        end = self._OFFSET + 8 * self.WORDS
        self._seed = self._state.numpy()[:8].view("u8")
        self._words = self._state.numpy()[self._OFFSET : end].view("u8")

    def set(self, seed: int, words: Any) -> None:
        """Set the state.

        Args:
            seed: What ``initial_seed`` answers.
            words: ``WORDS // 2`` random numbers of 64 bits.
        """
        self._seed[0] = seed
        self._words[:] = words.view("u4")
        self.generator.set_state(self._state)


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


def _kernel(operator: Any, here: Any) -> Callable[..., Any]:
    """Return what is called in a thread that includes the key, with the key set that is left."""
    arguments = operator._schema.arguments
    place = next(n for n, argument in enumerate(arguments) if argument.name == "generator")
    on_tensor = str(arguments[0].type) == "Tensor"
    redispatch = operator._handle.redispatch_boxed
    fake = torch._C._len_torch_dispatch_stack

    def kernel(keys: Any, *args: Any, **kwargs: Any) -> Any:
        stream = here.stream
        given = args[place] if len(args) > place else kwargs.get("generator")
        if stream is None or (given is not None and given._cdata != _default_cdata):
            pass
        elif not (args[0].is_cpu if on_tensor else _on_cpu(kwargs.get("device"))) or fake():
            pass  # an accelerator's generator is left alone, and fake tensors draw nothing
        elif len(args) > place:
            args = (*args[:place], stream.torch_generator, *args[place + 1 :])
        else:
            kwargs["generator"] = stream.torch_generator
        # What the operator calls itself has its generator by now.
        _include(_KEY, False)
        try:
            return redispatch(keys - _KEYS, *args, **kwargs)
        finally:
            _include(_KEY, True)

    return kernel


def _on_cpu(device: Any) -> bool:
    return device is None or torch.device(device).type == "cpu"


# What follows runs with the globals of torch.random.


def _manual_seed(seed: Any) -> Any:
    stream = _threadloader_streams.stream  # type: ignore[name-defined]  # noqa: F821
    if stream is None:
        return _threadloader_manual_seed(seed)  # type: ignore[name-defined]  # noqa: F821
    return stream.torch_generator.manual_seed(int(seed))


def _seed() -> Any:
    stream = _threadloader_streams.stream  # type: ignore[name-defined]  # noqa: F821
    if stream is None:
        return _threadloader_seed()  # type: ignore[name-defined]  # noqa: F821
    return stream.torch_generator.seed()


def _get_rng_state() -> Any:
    stream = _threadloader_streams.stream  # type: ignore[name-defined]  # noqa: F821
    if stream is None:
        return _threadloader_get_rng_state()  # type: ignore[name-defined]  # noqa: F821
    return stream.torch_generator.get_state()


def _set_rng_state(new_state: Any) -> Any:
    stream = _threadloader_streams.stream  # type: ignore[name-defined]  # noqa: F821
    if stream is None:
        return _threadloader_set_rng_state(new_state)  # type: ignore[name-defined]  # noqa: F821
    return stream.torch_generator.set_state(new_state)


_EXCHANGED = {
    "manual_seed": _manual_seed.__code__,
    "seed": _seed.__code__,
    "get_rng_state": _get_rng_state.__code__,
    "set_rng_state": _set_rng_state.__code__,
}
