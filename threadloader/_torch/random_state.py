"""torch's random state in a worker: the seeding functions, and the operators.

`torch.manual_seed` and its like get their code exchanged, as they may have been imported long
ago (see `worker_info`).
"""

from __future__ import annotations

import inspect
from contextlib import suppress
from types import FunctionType, SimpleNamespace
from typing import TYPE_CHECKING, Any

import torch

from threadloader._torch.operators import NoOperators
from threadloader._torch.random_ops import OperatorsByKey
from threadloader._warnings import warn_user

if TYPE_CHECKING:
    from threadloader._torch.operators import RandomOperators

__all__ = ["teach_random"]


def teach_random(here: Any) -> RandomOperators:
    """Redirect torch's random functions in threads that ask for it.  Call once.

    Args:
        here: A `threading.local`; its ``stream`` has the thread's ``torch_generator``, or is None.

    Returns:
        The redirection of operators; it has to be kept.
    """
    names: dict[str, Any] = {"_threadloader_streams": here}
    for name, code in _EXCHANGED.items():
        function = inspect.unwrap(getattr(torch.random, name))
        if function.__code__ is code:  # by a call that Ctrl-C interrupted
            continue
        names[f"_threadloader_{name}"] = FunctionType(function.__code__, function.__globals__)
        vars(torch.random).update(names)
        with suppress(ValueError):  # a function of another kind: it is left alone
            function.__code__ = code
    try:
        operators = OperatorsByKey(here)
        if _works(operators, here):
            return operators
    except Exception:  # noqa: BLE001, S110  # whatever torch has changed
        pass
    warn_user(
        f"torch {torch.__version__} lacks what random operators are redirected by: what samples "
        "draw from torch depends on the moment.  Draw from sample_rng() instead"
    )
    return NoOperators()


def _works(operators: OperatorsByKey, here: Any) -> bool:
    """Return whether draws come from the thread's stream and leave the global state alone."""
    default = torch.default_generator
    own, expected = (torch.Generator().manual_seed(1) for _ in range(2))
    before, state = here.stream, default.get_state()
    here.stream = SimpleNamespace(torch_generator=own)
    try:
        # The user may have set another device.
        drawn = operators.redirected(
            lambda: [torch.rand(1, generator=each, device="cpu") for each in (default, None)]
        )
    finally:
        here.stream = before
        default.set_state(state)
    return all(torch.equal(each, torch.rand(1, generator=expected, device="cpu")) for each in drawn)


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
