"""The samples of one source of a mixture of streams: pass after pass, with a state.

A feed knows one replica's place in one source.  Its state is that of the source, or of its
iterator, if they have one.  Otherwise it is a number: so many samples are read again, and dropped.
"""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, Any

import numpy as np

from threadloader import _torch
from threadloader._ranks.parts import Part, asked, is_askable
from threadloader._resume.stateful import (
    fresh_state,
    is_stateful,
    restore,
    restore_begun,
    restore_between,
    restore_whole,
    snapshot,
    states_of,
)
from threadloader._rng.keys import epoch_seed
from threadloader._threads.worker_info import in_part, in_pass, pass_seed_here
from threadloader.errors import SampleError, StateError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from threadloader.datasets._mixture.source_order import SourceOrder
    from threadloader.datasets._shards.sharding import Replica

__all__ = ["Fresh", "SourceSamples", "SourceStream", "put_back"]

# By the names of sources: what has a state, and that state.
Fresh = dict[str, tuple[Any, Any]]

_TURNS = 256  # of a map-style source, whose indices are computed at once: 60 us


class SourceStream:
    """An iterable source.

    Args:
        name: For errors.
        source: The worker's own copy.  One with a ``shard(rank, world_size, epoch)`` is asked for
            its part; other iterable datasets of torch's know their worker themselves; of any other
            iterable each replica keeps every n-th sample.
        replica: Which part is read.
        epoch: Of the mixture.
        fresh: Gets the state of a source from before another one was restored, until the pass that
            the restored one belongs to has ended.

    Threads:
        all: one thread, the worker that owns it.
    """

    def __init__(self, name: str, source: Any, replica: Replica, epoch: int, fresh: Fresh) -> None:
        self._name = name
        self._role = _role_of(name)
        self._source = source
        self._replica = replica
        self._number = replica.rank * replica.workers + replica.worker
        self._replicas = replica.world * replica.workers
        self._epoch = epoch
        self._askable = is_askable(source)
        self._in_pass = in_pass
        # Whether the source knows nothing of replicas, and there are several.
        self._strided = self._replicas > 1 and not (
            self._askable or isinstance(source, _torch.IterableDataset)
        )
        self._pass = 0
        self._given = 0  # samples of this pass
        self._part: Any = source  # what the iterator is of
        self._iterator: Iterator[Any] | None = None
        self._seed: int | None = None  # what decides the order of streams without a seed
        self._fresh = fresh
        self._restored: Mapping[str, Any] | None = None  # to begin from

    def next(self) -> Any:
        """Return the next sample.

        Raises:
            StopIteration: The pass is over.
            Exception: The source's own; the next call goes on after it.
        """
        if self._iterator is None:
            self._seed = pass_seed_here()
            if self._pass and self._seed is not None:
                self._seed = epoch_seed(self._seed, self._pass)
            in_pass(self._seed, self._begin)
        iterator: Any = self._iterator
        sample = self._in_pass(self._seed, next, iterator)
        self._given += 1
        return sample

    def begin_again(self) -> None:
        """Begin another pass.

        Raises:
            ValueError: The last one gave nothing.
        """
        if not self._given:
            replica = self._replica
            msg = (
                f"source {self._name!r} has no sample for worker {replica.worker} of "
                f"{replica.workers} of rank {replica.rank}, and has a weight: it needs at least as "
                "many shards as there are workers in all ranks"
            )
            raise ValueError(msg)
        self._end()
        self._pass += 1
        self._given = 0

    def _begin(self) -> None:
        part = self._source
        if self._askable:
            given = asked(part, Part.of(*self._replica, self._epoch + self._pass))
            if given is not None:
                part, self._in_pass = given, in_part
        self._part = part
        self._in_pass(self._seed, self._begin_part, part)

    def _begin_part(self, part: Any) -> None:
        state, role = self._restored, self._role
        states: Mapping[str, Any] = {} if state is None else state.get("states", {})
        if "dataset" in states:
            if is_stateful(part):
                self._fresh[self._name] = part, fresh_state(part)
            restore_between(role, part, states["dataset"])
        iterator = iter(part)
        if "iterator" in states:
            restore(role, iterator, states["iterator"])
        elif "self" in states:
            restore_begun(iterator, states["self"])
        if self._strided:
            iterator = islice(iterator, self._number, None, self._replicas)
        self._iterator = iterator
        self._restored = None
        if state is not None and not states:
            self._skip(state["given"])

    def _skip(self, count: int) -> None:
        iterator: Any = self._iterator
        for number in range(count):
            if next(iterator, self) is self:
                msg = (
                    f"source {self._name!r} ended after {number} samples, and had given {count} of "
                    "this pass when the state was saved"
                )
                raise StateError(msg)

    def _end(self) -> None:
        part, fresh = self._fresh.pop(self._name, (None, None))
        if fresh is not None:
            # The restored state counts for one pass, and the next one is whole.
            restore_whole(self._role, part, snapshot(part), fresh)
        self._iterator = None
        self._part = self._source

    def state(self) -> dict[str, Any]:
        """Return the place of the source."""
        if self._restored is not None:
            return dict(self._restored)
        state: dict[str, Any] = {"pass": self._pass, "given": self._given}
        if self._iterator is not None and not self._strided:
            states = states_of("dataset", self._part, self._iterator)
            if states:
                state["states"] = states
        return state

    def load(self, state: Mapping[str, Any]) -> None:
        """Go to the place of a state."""
        self._pass, self._given = int(state["pass"]), int(state["given"])
        self._iterator = None
        self._restored = state if self._given or "states" in state else None


class SourceSamples:
    """A map-style source: the replicas take its samples in turn, in the order of `SourceOrder`.

    Args:
        name: For errors.
        source: The worker's own copy.
        number: Of the source in ``order``.
        length: Its samples.
        replica: Which part is read.
        order: Of all map-style sources.

    Threads:
        all: one thread, the worker that owns it.
    """

    def __init__(
        self,
        name: str,
        source: Any,
        number: int,
        length: int,
        replica: Replica,
        order: SourceOrder,
    ) -> None:
        self._name, self._source, self._number = name, source, number
        self._length, self._order = length, order
        self._turn = replica.rank * replica.workers + replica.worker  # of the source, over all
        self._step = replica.world * replica.workers
        self._pass = 0
        self._indices: Iterator[int] = iter(())

    def next(self) -> Any:
        """Return the next sample; see `SourceStream.next`."""
        if self._turn >= (self._pass + 1) * self._length:
            raise StopIteration
        index = next(self._indices, None)
        if index is None:
            self._indices = iter(self._computed())
            index = next(self._indices)
        self._turn += self._step
        try:
            return self._source[index]
        except StopIteration as error:  # which would look like the end of the source
            msg = f"sample {index} of the mixture's source {self._name!r} raised StopIteration"
            raise SampleError(msg) from error

    def _computed(self) -> list[int]:
        """Return the indices of the next turns."""
        turns = self._turn + self._step * np.arange(_TURNS)
        indices = self._order.indices(np.full(_TURNS, self._number), turns)
        return list(map(int, indices))

    def begin_again(self) -> None:
        """Begin another pass."""
        self._pass = max(self._pass + 1, self._turn // self._length)

    def state(self) -> dict[str, Any]:
        """Return the place of the source."""
        return {"turn": self._turn, "pass": self._pass}

    def load(self, state: Mapping[str, Any]) -> None:
        """Go to the place of a state."""
        self._turn, self._pass = int(state["turn"]), int(state["pass"])
        self._indices = iter(())


def put_back(fresh: Fresh) -> None:
    """Give sources in the middle of a pass the state from before another one was restored."""
    for name, (part, state) in fresh.items():
        if state is not None:
            restore_between(_role_of(name), part, state)


def _role_of(name: str) -> str:
    return f"mixture's source {name!r}"
