"""Objects of the user's that have a state: torchdata's ``Stateful``, known by its two methods."""

from __future__ import annotations

import copy
from typing import Any

from threadloader.errors import StateError

__all__ = ["is_stateful", "restore", "restore_whole", "snapshot", "states_of"]

_END = object()


def is_stateful(value: object) -> bool:
    """Whether ``value`` has ``state_dict`` and ``load_state_dict``."""
    return all(callable(getattr(value, name, None)) for name in ("state_dict", "load_state_dict"))


def snapshot(value: Any) -> Any:
    """Return the state of an object, which later changes of the object leave alone."""
    return copy.deepcopy(value.state_dict())


def states_of(role: str, iterable: Any, iterator: Any) -> dict[str, Any]:
    """Return the states of an iterable and of its iterator that have any, by role.

    Args:
        role: What the iterable is.
        iterable: Of the user's.
        iterator: Of it; where it is the iterable itself, which goes back to its beginning, perhaps,
            when it is iterated over, the role is ``"self"``.
    """
    objects = {role: iterable, "iterator": iterator}
    if iterator is iterable:
        objects = {"self": iterable}
    return {name: snapshot(value) for name, value in objects.items() if is_stateful(value)}


def restore(role: str, value: Any, state: Any) -> None:
    """Give an object a state that `snapshot` returned.

    Args:
        role: What the object is, for the error.
        value: The object.
        state: Copied.

    Raises:
        StateError: The object has no ``load_state_dict``.
    """
    if not is_stateful(value):
        msg = f"the state holds one of the {role}, but {type(value).__name__} has no state_dict"
        raise StateError(msg)
    value.load_state_dict(copy.deepcopy(state))


def restore_whole(role: str, value: Any, state: Any, fresh: Any = None) -> None:
    """Give an iterable the state that it had between two passes, so that its next pass is whole.

    After the end of a pass some go back to a state from which the next begins.  Some save that
    they are at their end: one pass after it is restored is empty (torchdata's
    ``StatefulDistributedSampler``).  Some are at their end for ever then (Hugging Face's
    ``IterableDataset``): they keep the state that they have.  Which of them it is one item tells.

    Args:
        role: See `restore`.
        value: The object; an item of it may be read.
        state: See `restore`.
        fresh: What it had before any state was restored; None for what it has.
    """
    if fresh is None and is_stateful(value):
        fresh = snapshot(value)
        if _is_same(fresh, state):
            return  # to load it could mean more than to have it: where a pass is to begin, say
    restore(role, value, state)
    if not _is_at_end(value):
        restore(role, value, state)
    elif not _is_at_end(value):
        restore(role, value, state)
        _is_at_end(value)  # the one pass that is empty
    else:
        restore(role, value, fresh)


def _is_same(one: Any, other: Any) -> bool:
    try:
        return bool(one == other)
    except Exception:  # noqa: BLE001  # arrays and tensors have no one truth
        return False


def _is_at_end(iterable: Any) -> bool:
    return next(iter(iterable), _END) is _END
