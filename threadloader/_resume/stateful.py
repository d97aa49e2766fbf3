"""The user's objects that have a state: torchdata's ``Stateful``, recognised by its two methods."""

from __future__ import annotations

import copy
from inspect import isgeneratorfunction
from typing import TYPE_CHECKING, Any

from threadloader.errors import StateError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

__all__ = [
    "begin",
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

    The ``state_dict`` of litdata's ``StreamingDataset`` needs some: only its own loader calls it.
    """
    save = getattr(value, "state_dict", None)
    load = getattr(value, "load_state_dict", None)
    return callable(save) and callable(load) and not _needs_arguments(save)


def _needs_arguments(method: Any) -> bool:
    """Whether a method can't be called without arguments; in 0.3 us, where `inspect` takes 10."""
    function = getattr(method, "__func__", None)
    code = getattr(function, "__code__", None)
    if function is None or code is None:
        return False
    given = 1 + len(function.__defaults__ or ())
    return bool(
        code.co_argcount > given or code.co_kwonlyargcount > len(function.__kwdefaults__ or ())
    )


def snapshot(value: Any) -> Any:
    """Return a copy of an object's state."""
    return copy.deepcopy(value.state_dict())


def snapshot_between(iterable: Any) -> Any:
    """Return the state of an iterable between two passes; None if it has none yet.

    An iterable that sets its position in ``__iter__`` has none before: it is at its beginning.
    torchdata's loader asks no iterable before that.  If ``state_dict`` fails for another reason,
    it raises again after the first batch.
    """
    try:
        return snapshot(iterable)
    except Exception:  # noqa: BLE001  # any error of looking for a position that is not there
        return None


def states_of(role: str, iterable: Any, iterator: Any) -> dict[str, Any]:
    """Return the states of an iterable and its iterator, by role, if they have any.

    Args:
        role: The role of the iterable.
        iterable: The user's.
        iterator: Its iterator.  If that is the iterable itself, the role is ``"self"``: another
            ``iter`` may take it back to its beginning.
    """
    objects = {role: iterable, "iterator": iterator}
    if iterator is iterable:
        objects = {"self": iterable}
    return {name: snapshot(value) for name, value in objects.items() if is_stateful(value)}


def fresh_state(iterable: Any) -> Any:
    """Return the state of an iterable, before another state is restored.

    With some, ``state_dict`` begins a pass, which the next ``__iter__`` returns (torchdata's
    ``nodes.Loader``).  That pass is used up here: it would come in place of the restored one.
    """
    state = snapshot_between(iterable)
    if not isgeneratorfunction(getattr(type(iterable), "__iter__", None)):
        iter(iterable)
    return state


def restore(role: str, value: Any, state: Any) -> None:
    """Give an object a state that `snapshot` returned.

    Args:
        role: The object's role, for the error.
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

    ``iter`` is called first on an iterable that is its own iterator: its ``__iter__`` may make what
    ``load_state_dict`` needs.  torchdata's loader does the same.
    Source: ``_worker_loop`` in torchdata/stateful_dataloader/worker.py.
    """
    if _is_iterator(iterable):
        iter(iterable)
    restore(role, iterable, state)


def begin(role: str, iterable: Any, states: Mapping[str, Any]) -> Iterator[Any]:
    """Begin a pass over an iterable, in the place of some states.

    Args:
        role: Of the iterable, for errors.
        iterable: Is iterated over.
        states: As `states_of` returned them for the role ``"dataset"``; none for the beginning.

    Raises:
        StateError: What had a state has none any more.
    """
    if "dataset" in states:
        restore_between(role, iterable, states["dataset"])
    iterator: Iterator[Any] = iter(iterable)
    if "iterator" in states:
        restore(f"{role}'s iterator", iterator, states["iterator"])
    elif "self" in states:
        restore_begun(iterator, states["self"])
    return iterator


def restore_begun(iterable: Any, state: Any) -> None:
    """Bring an iterable that is its own iterator into the middle of a pass that was begun.

    The loaded state may not count before the next ``__iter__``, as with litdata.  Its state after
    loading shows that.
    """
    restore("dataset", iterable, state)
    if not _is_same(snapshot(iterable), state):
        iter(iterable)
        if not _is_same(snapshot(iterable), state):
            restore("dataset", iterable, state)


def restore_after(iterable: Any, states: Mapping[str, Any]) -> None:
    """Bring an iterable to the end of a pass, so that the next pass is whole.

    Args:
        iterable: An iterable dataset.
        states: As `states_of` returned them at that end.
    """
    if "iterator" in states and "dataset" in states:
        # The iterator has the place.  Its ``__iter__`` may count the passes.
        restore_between("dataset", iterable, states["dataset"])
        restore("dataset's iterator", iter(iterable), states["iterator"])
        return
    state = states.get("self", states.get("dataset"))
    if state is not None:
        restore_whole("dataset", iterable, state)


def restore_whole(role: str, value: Any, state: Any, fresh: Any = None) -> None:
    """Give an iterable the state that it had between two passes, so that its next pass is whole.

    Iterables differ in the state that they save at the end of a pass.  From some of these states
    the next pass begins.  From others one empty pass comes first (torchdata's
    ``StatefulDistributedSampler``).  From others nothing comes any more (Hugging Face's
    ``IterableDataset``): such an iterable keeps the state that it has.  To read one item shows the
    difference.

    Args:
        role: See `restore`.
        value: The object; an item of it may be read.
        state: See `restore`.
        fresh: Its state before any was restored; None for the one that it has now.
    """
    if fresh is None and is_stateful(value):
        fresh = snapshot_between(value)
        if _is_same(fresh, state):
            return  # to load a state may do more: set where a pass begins, say
    restore_between(role, value, state)
    if not _is_at_end(value):
        restore_between(role, value, state)
    elif not _is_at_end(value):
        restore_between(role, value, state)
        _is_at_end(value)  # the one empty pass
    elif fresh is not None and not _is_iterator(value):  # an iterator has one pass, and this ended
        restore_between(role, value, fresh)


def _is_iterator(iterable: object) -> bool:
    return hasattr(type(iterable), "__next__")


def _is_same(one: Any, other: Any) -> bool:
    try:
        return bool(one == other)
    except Exception:  # noqa: BLE001  # arrays and tensors have no single truth
        return False


def _is_at_end(iterable: Any) -> bool:
    return next(iter(iterable), _END) is _END
