"""A place in a pass over the data, saved so that a later pass can go on from there.

The batches of a sampler are one *lane*, and so are those of each replica of an iterable dataset.
In a lane, batches are delivered in order, or ``ahead`` of others that were drawn before them.

Objects of the user's that have a state are saved with it: torchdata's ``Stateful``, recognised by
its two methods.
"""

from __future__ import annotations

import copy
from inspect import isgeneratorfunction
from typing import TYPE_CHECKING, Any, NamedTuple

from threadloader.errors import StateError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping


class Checkpoint(NamedTuple):
    """The states of a sampler or an iterable between two batches, to go back to."""

    batches: int  # drawn or read before
    samples: int  # in these batches
    states: dict[str, Any]  # of the user's objects, by role; those without a state are left out
    ended: bool = False  # whether no batch comes after: an object may be at its beginning again
    between_passes: bool = False  # whether a pass begins here, and none was broken off before


class Lane:
    """The delivered batches of one sampler or replica, and its checkpoints.

    Args:
        batches: All before this one were delivered.
        first: The checkpoint at the beginning.
        sampler_epoch: The number of the epoch in a user's sampler; None if it has none.

    Threads:
        all: consumer; but ``first`` is set, atomically, by the worker that reads a replica.
    """

    # No dataclass here, and few elsewhere: each takes as long to import as a module.

    def __init__(
        self,
        batches: int = 0,
        *,
        first: Checkpoint | None = None,
        sampler_epoch: int | None = None,
    ) -> None:
        self.batches = batches
        self.checkpoint: Checkpoint | None = None  # the latest one at or before ``batches``
        self.check: tuple[int, int] | None = None  # or batches, and what follows from their indices
        self.ahead: dict[int, Checkpoint | int | None] = {}  # delivered beyond ``batches``
        self.length: int | None = None  # batches of a user's sampler in all
        self.first = first
        # Takes ``first`` now; returns None if it is too late for that.
        self.find_first: Callable[[], Checkpoint | None] = lambda: None
        self.total: int | None = None  # batches of a replica, once it was read to its end
        self.sampler_epoch = sampler_epoch
        self.end_checkpoint: Checkpoint | None = None  # at that end
        self.before: tuple[Any, ...] = ()  # the number delivered last, and the fields before that

    @property
    def ended(self) -> bool:
        """Whether all batches of a replica were delivered, as far as is known."""
        return self.total is not None and self.batches >= self.total

    def delivered(self, number: int, checkpoint: Checkpoint | int | None) -> None:
        """Count a batch as delivered.

        Args:
            number: The number of the batch in the lane, from 0.
            checkpoint: A checkpoint taken after it, or the check of all indices so far, or None.
        """
        self.before = number, self.batches, self.checkpoint, self.check, self.ahead.copy()
        if number == self.batches and not self.ahead:  # always, if batches come in order
            self.batches = number + 1
            if checkpoint is not None:
                self._keep(self.batches, checkpoint)
            return
        self.ahead[number] = checkpoint
        while self.batches in self.ahead:
            checkpoint = self.ahead.pop(self.batches)
            self.batches += 1
            self._keep(self.batches, checkpoint)

    def take_back(self, number: int) -> None:
        """Undo `delivered`, if this was the last batch: the consumer did not get it."""
        if self.before[:1] == (number,):
            _, self.batches, self.checkpoint, self.check, self.ahead = self.before
            self.before = ()

    def ends(self, number: int, checkpoint: Checkpoint | None) -> None:
        """Note that a replica has no batch of this number, nor any after it."""
        if self.total is None or number < self.total:
            self.total, self.end_checkpoint = number, checkpoint

    def drawn_again(self, number: int, checkpoint: Checkpoint | int | None) -> None:
        """Note the checkpoint of a batch that was delivered before this lane was restored."""
        if number in self.ahead:
            self.ahead[number] = checkpoint
        else:
            self._keep(number + 1, checkpoint)

    def state(self) -> dict[str, Any]:
        """Return the state of the lane, JSON-able if the states of the user's objects are."""
        state: dict[str, Any] = {"batches": self.batches}
        if self.ended:
            state["ended"] = True
        if self.ahead:
            # Bits, not a list: that is short, even with a large window.
            state["ahead"] = hex(sum(1 << (number - self.batches) for number in self.ahead))
        if self.check is not None:
            state["check"] = list(self.check)
        if self.length is not None:
            state["of"] = self.length
        if self.sampler_epoch is not None:
            state["epoch"] = self.sampler_epoch
        checkpoint = self.end_checkpoint if self.ended else self.checkpoint
        if checkpoint is None and not self.ended:
            checkpoint = self.find_first() if self.first is None else self.first
        if checkpoint is not None:
            state["mark"] = _encoded(checkpoint)
        return state

    @classmethod
    def of(cls, state: Mapping[str, Any]) -> Lane:
        """Return the lane with a state that `state` returned.

        Raises:
            ValueError, TypeError, KeyError, AttributeError: It is not the state of a lane.
        """
        batches, bits = state["batches"], int(state.get("ahead", "0x0"), 16)
        check = state.get("check")
        if type(batches) is not int or batches < 0:
            raise ValueError(batches)
        lane = cls(batches, sampler_epoch=state.get("epoch"))
        lane.check = None if check is None else (int(check[0]), int(check[1]))
        lane.length = state.get("of")
        lane.ahead.update(
            (batches + bit, None) for bit in range(bits.bit_length()) if bits >> bit & 1
        )
        checkpoint = _decoded(state["mark"]) if "mark" in state else None
        if checkpoint is not None and not checkpoint.batches:
            lane.first = checkpoint
        else:
            lane.checkpoint = checkpoint
        if state.get("ended"):
            lane.ends(lane.batches, checkpoint)
        return lane

    def _keep(self, batches: int, checkpoint: Checkpoint | int | None) -> None:
        """Keep a checkpoint or check taken after so many batches, if it is later."""
        if type(checkpoint) is int:
            if self.check is None or batches > self.check[0]:
                self.check = batches, checkpoint
        elif isinstance(checkpoint, Checkpoint) and (
            self.checkpoint is None or checkpoint.batches > self.checkpoint.batches
        ):
            self.checkpoint = checkpoint


def _encoded(checkpoint: Checkpoint) -> dict[str, Any]:
    encoded: dict[str, Any] = {
        "batches": checkpoint.batches,
        "samples": checkpoint.samples,
        "states": copy.deepcopy(checkpoint.states),
    }
    if checkpoint.ended:
        encoded["ended"] = True
    if checkpoint.between_passes:
        encoded["whole"] = True
    return encoded


def _decoded(encoded: Mapping[str, Any]) -> Checkpoint:
    return Checkpoint(
        int(encoded["batches"]),
        int(encoded["samples"]),
        dict(encoded["states"]),
        ended=bool(encoded.get("ended")),
        between_passes=bool(encoded.get("whole")),
    )


class Position:
    """Where the consumer is in an epoch.

    Args:
        epoch: Its number, from 0.
        lanes: Empty until the replicas are counted.
        turn: The replica that delivered last.
        saved: The loader's state that the lanes are restored from.

    Threads:
        all: consumer.
    """

    def __init__(
        self,
        epoch: int,
        lanes: list[Lane],
        turn: int = 0,
        saved: Mapping[str, Any] | None = None,
    ) -> None:
        self.epoch = epoch
        self.lanes = lanes
        self.turn = turn
        self.saved = saved
        self.skipped = 0  # samples that were left out of the delivered batches
        self.step = 0  # units of all ranks in a batch; 0 where one process loads all
        self.origin = 0  # units of all ranks that were delivered before the first batch
        self.skip = 0  # those among them that are drawn again
        self.finished = False  # whether the consumer got the StopIteration
        self.broken_off = False  # whether the replicas were in the middle of another epoch before
        self.refused = False  # whether the sampler does not fit the state
        self.before: int | None = None  # batches of the epoch before; None if there was none
        self.order: Mapping[str, Any] | None = None  # an iterable's ``order_identity()``, if any

    @classmethod
    def of(cls, epoch: int, state: Mapping[str, Any]) -> Position:
        """Return the position in a loader's state; raises the same errors as `Lane.of`."""
        lanes = [Lane.of(lane) for lane in state["lanes"]]
        position = cls(epoch, lanes, int(state.get("turn", len(lanes) - 1)), state)
        position.skipped = int(state.get("skipped", 0))
        shared = state.get("shared", {})
        position.step, position.origin, position.skip = (
            int(shared.get(name, 0)) for name in ("step", "origin", "skip")
        )
        return position

    def count_in(self, step: int) -> None:
        """Count from now on in batches of so many units of all ranks.

        What was delivered in batches of another size comes before the first batch then.

        Args:
            step: Units.
        """
        before, self.step = self.step, step
        (lane,) = self.lanes
        if not self.restored or before == step:
            return
        if not before:  # saved where one process loaded all
            before = (self.saved or {}).get("loader", {}).get("batch_size") or 1
        checkpoint = lane.checkpoint or lane.first
        delivered = lane.batches * before
        if checkpoint is None:
            self.skip += delivered
        else:
            self.skip = (0 if checkpoint.batches else self.skip) + (
                (lane.batches - checkpoint.batches) * before
            )
            checkpoint = checkpoint._replace(batches=0)
        self.origin += delivered
        self.lanes = [Lane(first=checkpoint, sampler_epoch=lane.sampler_epoch)]

    @property
    def restored(self) -> bool:
        """Whether the lanes come from a saved state."""
        return self.saved is not None

    @property
    def batches(self) -> int:
        """The number of delivered batches."""
        return sum(lane.batches + len(lane.ahead) for lane in self.lanes)

    def state(self) -> dict[str, Any]:
        """Return the state, JSON-able if the states of the user's objects are."""
        state: dict[str, Any] = {"lanes": [lane.state() for lane in self.lanes]}
        if len(self.lanes) > 1:
            state["turn"] = self.turn
        if self.skipped and not self.step:  # a sharded state is the same on all ranks
            state["skipped"] = self.skipped
        if self.step:
            shared = {"step": self.step, "origin": self.origin, "skip": self.skip}
            state["shared"] = {name: count for name, count in shared.items() if count}
        if self.order is not None:
            state["dataset's order"] = dict(self.order)
        return state

    def lanes_after(self) -> list[Lane]:
        """Return the lanes of the next epoch, which goes on with the same replicas."""
        checkpoints = [_between(lane.end_checkpoint) for lane in self.lanes]
        return [Lane(first=checkpoint) for checkpoint in checkpoints] if any(checkpoints) else []


def _between(checkpoint: Checkpoint | None) -> Checkpoint | None:
    """Return a checkpoint of an iterable between two passes, from the one after a pass."""
    states = checkpoint.states if checkpoint is not None else {}
    if "self" in states:
        states = {"dataset": states["self"]}
    return Checkpoint(0, 0, states, between_passes=True) if "dataset" in states else None


def has_ended(state: Mapping[str, Any]) -> bool:
    """Whether the epoch has ended, though its consumer did not ask for the end.

    Accelerate's loaders are one batch ahead of their consumer, and note that in the state.
    Source: ``DataLoaderAdapter._update_state_dict`` in accelerate/data_loader.py.
    """
    return bool(state["begun"] and state.get("_iterator_finished"))


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
