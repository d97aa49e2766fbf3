"""Objects of the user's that have a state: torchdata's ``Stateful``, known by its two methods."""

from __future__ import annotations

import copy
from inspect import isgeneratorfunction
from typing import TYPE_CHECKING, Any

from threadloader.errors import StateError

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = [
    "fresh_state",
    "is_stateful",
    "restore",
    "restore_after",
    "restore_begun",
    "restore_between",
    "restore_whole",
    "snapshot",
    "snapshot_between",
    "states_of",
]

_END = object()


def is_stateful(value: object) -> bool:
    """Whether ``value`` has ``load_state_dict``, and a ``state_dict`` that needs no arguments.

    That of litdata's ``StreamingDataset`` needs some: its own loader alone calls it.
    """
    tells = getattr(value, "state_dict", None)
    takes = getattr(value, "load_state_dict", None)
    return callable(tells) and callable(takes) and not _needs_arguments(tells)


def _needs_arguments(method: Any) -> bool:
    """Whether a method can't be called without; in 0.3 us, where `inspect` takes ten."""
    function = getattr(method, "__func__", None)
    code = getattr(function, "__code__", None)
    if function is None or code is None:
        return False
    given = 1 + len(function.__defaults__ or ())
    return bool(
        code.co_argcount > given or code.co_kwonlyargcount > len(function.__kwdefaults__ or ())
    )


def snapshot(value: Any) -> Any:
    """Return the state of an object, which later changes of the object leave alone."""
    return copy.deepcopy(value.state_dict())


def snapshot_between(iterable: Any) -> Any:
    """Return the state of an iterable that no pass is under way of; None if it has none yet.

    One that makes its position in ``__iter__`` has none before: it is at its beginning.
    torchdata's loader asks no iterable before that; a state that can't be told for another
    reason raises after the first batch.
    """
    try:
        return snapshot(iterable)
    except Exception:  # noqa: BLE001  # whatever looking for a position that is not there raises
        return None


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


def fresh_state(iterable: Any) -> Any:
    """Return the state of an iterable that another is going to be restored to.

    Where asking begins a pass, for the next ``__iter__`` to return (torchdata's ``nodes.Loader``),
    that one is taken: it would stand in the place of the one that is restored.
    """
    state = snapshot_between(iterable)
    if not isgeneratorfunction(getattr(type(iterable), "__iter__", None)):
        iter(iterable)
    return state


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


def restore_between(role: str, iterable: Any, state: Any) -> None:
    """Give an iterable a state before a pass over it; see `restore`.

    One that is its own iterator is iterated over first, as its ``__iter__`` may make what
    ``load_state_dict`` goes on with: torchdata's loader does so, too.
    Source: ``_worker_loop`` in torchdata/stateful_dataloader/worker.py.
    """
    if _is_iterator(iterable):
        iter(iterable)
    restore(role, iterable, state)


def restore_begun(iterable: Any, state: Any) -> None:
    """Bring an iterable that is its own iterator into the middle of a pass that was begun.

    What ``load_state_dict`` got may wait for the next ``__iter__``, as with litdata: the state
    that it has then tells.
    """
    restore("dataset", iterable, state)
    if not _is_same(snapshot(iterable), state):
        iter(iterable)
        if not _is_same(snapshot(iterable), state):
            restore("dataset", iterable, state)


def restore_after(iterable: Any, states: Mapping[str, Any]) -> None:
    """Bring an iterable to where a pass over it had ended, for the next pass to be whole.

    Args:
        iterable: An iterable dataset.
        states: As `states_of` returned them.
    """
    if "iterator" in states and "dataset" in states:
        # The iterator tells the place.  Its ``__iter__`` counts the passes, perhaps.
        restore_between("dataset", iterable, states["dataset"])
        restore("dataset's iterator", iter(iterable), states["iterator"])
        return
    state = states.get("self", states.get("dataset"))
    if state is not None:
        restore_whole("dataset", iterable, state)


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
        fresh = snapshot_between(value)
        if _is_same(fresh, state):
            return  # to load it could mean more than to have it: where a pass is to begin, say
    restore_between(role, value, state)
    if not _is_at_end(value):
        restore_between(role, value, state)
    elif not _is_at_end(value):
        restore_between(role, value, state)
        _is_at_end(value)  # the one pass that is empty
    elif fresh is not None and not _is_iterator(value):  # which has one pass: it is at its end
        restore_between(role, value, fresh)


def _is_iterator(iterable: object) -> bool:
    return hasattr(type(iterable), "__next__")


def _is_same(one: Any, other: Any) -> bool:
    try:
        return bool(one == other)
    except Exception:  # noqa: BLE001  # arrays and tensors have no one truth
        return False


def _is_at_end(iterable: Any) -> bool:
    return next(iter(iterable), _END) is _END
