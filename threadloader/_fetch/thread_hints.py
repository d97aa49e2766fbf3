"""What to do about errors that code raises because a worker is a thread, told from their texts."""

from __future__ import annotations

__all__ = ["hint_of"]

_SIGNAL = (
    "a worker is a thread, and signals are for the main thread: for a limit on the time of a "
    "sample give the loader timeout=, or the read itself one"
)
_LOOP = (
    "a worker is a thread, which has no event loop before it makes one: call asyncio.run(...), or "
    "asyncio.set_event_loop(asyncio.new_event_loop()) once in worker_init_fn"
)
_RANDOM = (
    "while there are workers, random functions draw from the sample's stream, and a compiler may "
    "not know them: compile before the loop, or choose isolate_rng=False"
)
# A package that the error's class is of, a part of its text, and what to do.
_HINTS = (
    ("builtins", "signal only works in main thread", _SIGNAL),
    ("builtins", "There is no current event loop in thread", _LOOP),
    ("torch._dynamo", "random", _RANDOM),
    ("numba", "random", _RANDOM),
)


def hint_of(error: BaseException) -> str | None:
    """Return what to do about an error; None for one that has nothing to do with threads."""
    module = type(error).__module__
    hints = [(part, hint) for package, part, hint in _HINTS if module.startswith(package)]
    return next((hint for part, hint in hints if part in str(error)), None)
