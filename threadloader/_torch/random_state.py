"""torch's random state: what samplers draw from, and in a worker the stream of its sample.

The seeding functions, `torch.manual_seed` and its like, get their code exchanged, as they may have
been imported long ago (see `threads`).

Each operator with a ``generator`` gets a kernel on a dispatch key that torch itself has no use
for; all other operators fall through.  The key counts only in threads that include it, so the
rest of the process neither changes nor gets slower.  Dropout, initialisers, distributions,
scripted code and torchvision's transforms all end in these operators.  A TorchFunctionMode sees
draws of scripted code, as methods of tensors.

The kernels use names that torch does not promise, so they are tried once.  Where that fails,
operators are not redirected, and the user is told.
"""

from __future__ import annotations

import inspect
from contextlib import contextmanager, suppress
from threading import RLock
from types import FunctionType, SimpleNamespace
from typing import TYPE_CHECKING, Any, TypeVar

import torch

from threadloader._lifetime import DROPPED
from threadloader.errors import warn_user

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

__all__ = [
    "draw_base_seed",
    "generator_state",
    "new_generator",
    "set_generator_state",
    "teach_random",
]

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
MOST_KEPT = 1024  # Python objects of generators that are kept, 5 KB each with their generator


def draw_base_seed(generator: Any) -> int:
    """Draw one 64-bit number, as DataLoader does for its workers before the sampler draws.

    It is drawn also where nobody uses it: the sampler's seed follows it in the random state.
    Source: ``_BaseDataLoaderIter.__init__`` in torch/utils/data/dataloader.py.
    """
    device = "cpu" if generator is None else generator.device  # not the default one
    drawn = torch.empty((), dtype=torch.int64, device=device).random_(generator=generator)
    return int(drawn.item())


def new_generator(seed: int) -> Any:
    """Return a generator for samplers, with a seed."""
    return torch.Generator().manual_seed(seed)


def generator_state(generator: Any) -> bytes:
    """Return the state of a generator; of the process's default one for None."""
    state = torch.get_rng_state() if generator is None else generator.get_state()
    return state.numpy().tobytes()


def set_generator_state(generator: Any, state: bytes) -> None:
    """Give a generator a state that `generator_state` returned.

    Raises:
        RuntimeError: It is the state of another kind of generator.
    """
    generator.set_state(torch.frombuffer(bytearray(state), dtype=torch.uint8))


def teach_random(here: Any) -> OperatorsByKey | None:
    """Redirect torch's random functions in threads that ask for it.  Call once.

    Args:
        here: A `threading.local`; its ``stream`` has the thread's ``torch_generator``, or is None.

    Returns:
        The redirection of operators, which has to be kept; None if torch lacks what it needs.
    """
    names = vars(torch.random)
    # torch's own functions; kept there, as the first call may have been interrupted by Ctrl-C.
    own: dict[str, FunctionType] = names.setdefault("_threadloader_own", {})

    def call(name: str, *args: Any) -> Any:
        stream = here.stream
        if stream is None:
            return own[name](*args)
        return getattr(stream.torch_generator, name.replace("_rng", ""))(*args)

    names.update(_threadloader_streams=here, _threadloader_call=call)
    for name, code in _EXCHANGED.items():
        function = inspect.unwrap(getattr(torch.random, name))
        if function.__code__ is not code:
            own[name] = FunctionType(function.__code__, function.__globals__)
            with suppress(ValueError):  # a function of another kind: it is left alone
                function.__code__ = code
    try:
        operators = OperatorsByKey(here)
        if _works(operators, here):
            return operators
    except Exception:  # noqa: BLE001, S110  # whatever torch has changed
        pass
    warn_user(
        f"torch {torch.__version__} lacks the private names by which random operators are "
        "redirected: samples' numbers of torch don't follow from the seed.  Draw from sample_rng()"
    )
    return None


def _works(operators: OperatorsByKey, here: Any) -> bool:
    """Return whether draws come from the thread's stream and leave the global state alone."""
    default = torch.default_generator
    own, expected = (torch.Generator().manual_seed(1) for _ in range(2))
    before, state = here.stream, default.get_state()
    here.stream = SimpleNamespace(torch_generator=own)
    works = False
    try:
        # The user may have set another device.
        drawn = operators.redirected(
            lambda: [torch.rand(1, generator=each, device="cpu") for each in (default, None)]
        )
        again = [torch.rand(1, generator=expected, device="cpu") for _ in drawn]
        works = all(map(torch.equal, drawn, again))
    finally:
        here.stream = before
        if not works:  # or another thread, which draws meanwhile, would draw the same again
            default.set_state(state)
    return works


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
            library.impl(name, self._kernel(name, schema.arguments))
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

    def _kernel(self, name: str, arguments: Any) -> Callable[..., Any]:
        """Return the function that a thread that includes the key calls.

        Args:
            name: Of the operator, with its overload.
            arguments: Of its schema.
        """
        place = next(n for n, argument in enumerate(arguments) if argument.name == "generator")
        on_tensor = str(arguments[0].type) == "Tensor"
        here, own_of, key, include = self._here, self._own_of, self._key, self._include
        packet, _, overload = name.partition(".")
        # Nearly all draws end in a method of tensors, which is 1 us faster than the operator.
        draw: Any = getattr(torch.Tensor, packet, None) if packet.endswith("_") else None

        def kernel(*args: Any, **kwargs: Any) -> Any:
            nonlocal draw
            if draw is None:  # not before: to look all operators up takes long
                draw = getattr(getattr(torch.ops.aten, packet), overload or "default")
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
                return draw(*args, **kwargs)
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


# What follows runs with the globals of torch.random.


def _manual_seed(seed: Any) -> Any:
    return _threadloader_call("manual_seed", int(seed))  # type: ignore[name-defined]  # noqa: F821


def _seed() -> Any:
    return _threadloader_call("seed")  # type: ignore[name-defined]  # noqa: F821


def _get_rng_state() -> Any:
    return _threadloader_call("get_rng_state")  # type: ignore[name-defined]  # noqa: F821


def _set_rng_state(new_state: Any) -> Any:
    return _threadloader_call("set_rng_state", new_state)  # type: ignore[name-defined]  # noqa: F821


_EXCHANGED = {
    "manual_seed": _manual_seed.__code__,
    "seed": _seed.__code__,
    "get_rng_state": _get_rng_state.__code__,
    "set_rng_state": _set_rng_state.__code__,
}
