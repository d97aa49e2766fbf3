"""A pass over a sampler of the user's, begun at any batch, and its checkpoints or checks.

A sampler or an iterator that has a ``state_dict`` is asked for its state after each batch.  Any
other is drawn from its beginning again, and a check shows whether it gives the same indices.

A suspended generator refers to no object that leads back to it.  So a pass ends, and with it the
user's generators, as soon as nobody draws from it any more.
"""

from __future__ import annotations

import json
import weakref
import zlib
from functools import partial
from inspect import GEN_CREATED, getgeneratorstate, isgenerator
from itertools import islice
from operator import index
from typing import TYPE_CHECKING, Any

from threadloader._order.sampler_epoch import epoch_of
from threadloader._order.samplers import SPAN, batches_of, inner_sampler, length_of
from threadloader._resume.checkpoint import Checkpoint
from threadloader._resume.stateful import is_stateful, restore, restore_whole, snapshot, states_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

__all__ = ["UserPass", "next_checkpoint"]


class UserPass:
    """One pass over a sampler of the user's.

    Args:
        sampler: Yields a batch's indices, or single ones.
        snapshot_every: Batches from one checkpoint to the next; 0 for none.
        start: The checkpoint to go back to; None for the beginning.
        skip: What the sampler yields after ``start`` is left out, so many times.
        count: Returns how many samples that has.
        checked: Whether there is a check of the indices; not where other ranks have others, as the
            state of one rank is good for all.
    """

    known = own = sharded = False
    order = None
    first = 0

    def __init__(
        self,
        sampler: Any,
        snapshot_every: int = 0,
        start: Checkpoint | None = None,
        *,
        skip: int = 0,
        count: Callable[[Sequence[Any]], int] = len,
        checked: bool = True,
    ) -> None:
        inner = inner_sampler(sampler)
        self._sampler = sampler
        self._snapshot_every = snapshot_every
        self._check: int | None = 0 if checked else None
        self.batches = self.samples = 0
        states: Mapping[str, Any] = {}
        over = False
        if start is not None:
            self.batches, self.samples, states = start.batches, start.samples, start.states
            over = start.ended
            _restore_sampler(inner, start)
        self._batch_size = None if inner is sampler else sampler.batch_size
        self._iterating = _Iterating(
            inner, states.get("self", states.get("iterator")), over=over, skip=skip, count=count
        )
        self._drawing: Iterator[Any]
        if inner is sampler:
            self._drawing = self._iterating.start()
        else:
            self._drawing = _user_batches(
                self._iterating, sampler.batch_size, drop_last=sampler.drop_last
            )

    def __iter__(self) -> Iterator[Any]:
        return self._drawing

    def checkpoint(
        self, batches: int, samples: int, indices: Sequence[Any]
    ) -> Checkpoint | int | None:
        """Return a checkpoint, or a check of all indices so far; see `SamplerPass`."""
        if not self._iterating.stateful:
            self._check = _checked(self._check, indices)
            return self._check
        if not self._snapshot_every:
            return None
        ended = self._batch_size is not None and len(indices) < self._batch_size
        if ended or batches == 1 or batches % self._snapshot_every == 0:
            return Checkpoint(batches, samples, self._iterating.states(), ended=ended)
        return None

    @property
    def skipped(self) -> int:
        """Samples that were left out after ``start``."""
        return self._iterating.skipped

    @property
    def epoch(self) -> int | None:
        """The number of the sampler's epoch; None if it has none."""
        return self._iterating.epoch

    def finder_of_first(self) -> Callable[[], Callable[[], Checkpoint | None] | None]:
        """Return the `Lane.find_first` of this pass, which does not keep it alive."""
        return partial(_first_of, weakref.ref(self._iterating))

    def length(self) -> int | None:
        """Return the number of batches in all; None if the sampler has a state.

        A state may change the length.
        """
        return None if self._iterating.stateful else length_of(self._sampler)


class _Iterating:
    """The iterator of a user's sampler, which is made once.

    Args:
        sampler: Yields single indices, or is the user's own batch sampler.
        saved: State to restore in its iterator; None for none.
        over: Whether the pass is over, and there is nothing to iterate over.
        skip: What is left out at the beginning.
        count: Returns how many samples that has.
    """

    def __init__(
        self,
        sampler: Any,
        saved: Any,
        *,
        over: bool,
        skip: int,
        count: Callable[[Sequence[Any]], int],
    ) -> None:
        self._sampler = sampler
        self._skip, self._count = skip, count
        self.skipped = 0  # samples
        self._epoch: int | None = None  # of the sampler, when it was started
        self._saved = saved
        self._iterator: Any = iter(()) if over else None
        self._first: Checkpoint | None = None
        self.stateful = is_stateful(sampler)

    def start(self) -> Iterator[Any]:
        """Return the iterator, made by the first call."""
        if self._iterator is None:
            self._epoch = epoch_of(self._sampler)
            self._iterator = iter(self._sampler)
            if self._saved is not None:
                restore("sampler's iterator", self._iterator, self._saved)
            if not self.stateful and is_stateful(self._iterator):
                self.stateful = True
                self._first = Checkpoint(0, 0, self.states())
        iterator: Iterator[Any] = self._iterator
        while self._skip:
            left_out = list(islice(iterator, min(self._skip, SPAN)))
            self.skipped += self._count(left_out)
            self._skip = self._skip - len(left_out) if left_out else 0
        return iterator

    @property
    def epoch(self) -> int | None:
        """The number of the epoch that the sampler is in, or was in when it was started.

        A generator starts when it is first asked for something.
        """
        iterator = self._iterator
        waits = isgenerator(iterator) and getgeneratorstate(iterator) == GEN_CREATED
        return epoch_of(self._sampler) if iterator is None or waits else self._epoch

    def first(self) -> Checkpoint | None:
        """Return a checkpoint of the iterator at its beginning; None if the sampler has a state."""
        self.start()
        return self._first

    def states(self) -> dict[str, Any]:
        """Return the states of the user's objects, by role."""
        return states_of("sampler", self._sampler, self._iterator)


def _user_batches(
    iterating: _Iterating, batch_size: int, *, drop_last: bool
) -> Iterator[list[Any]]:
    """Yield the indices of each batch, as torch's ``BatchSampler`` does.

    A generator, so that the sampler starts when its first batch is asked for.
    """
    yield from batches_of(iterating.start(), batch_size, drop_last=drop_last)


def _restore_sampler(sampler: Any, checkpoint: Checkpoint) -> None:
    """Restore a user's sampler to the state from which a pass goes on, or begins."""
    states = checkpoint.states
    give_back = restore_whole if checkpoint.between_passes or checkpoint.ended else restore
    if "sampler" in states:
        give_back("sampler", sampler, states["sampler"])
    elif checkpoint.ended and "self" in states:
        give_back("sampler", sampler, states["self"])
    # A pass that is over may have left something on the sampler, a generator's state say.
    ended = states.get("ended", states.get("iterator") if checkpoint.ended else None)
    if ended is not None:
        restore("sampler's iterator", iter(sampler), ended)


def _checked(check: int | None, indices: Sequence[Any]) -> int | None:
    """Return the check of all indices so far; None if there are indices that JSON can't hold.

    Of whole numbers the sum, the first and the last count.  To look at their order, too, would
    cost ten times as much.

    Args:
        check: The check of the indices before; None for none.
        indices: The indices of the next batch.
    """
    if check is None or not len(indices):
        return check
    try:
        # Of NumPy's narrow ones the sum would be narrow, too.
        numbers = indices if type(indices[0]) is int else [int(each) for each in indices]
        total, first, last = index(sum(numbers)), int(indices[0]), int(indices[-1])
        return (check * 1_000_003 + total * 8_191 + first * 31 + last + 1) % (1 << 32)
    except (TypeError, ValueError, RuntimeError, OverflowError):
        pass
    try:
        return zlib.crc32(json.dumps(indices).encode(), check)  # strings, tuples
    except (TypeError, ValueError):
        return None


def _first_of(ref: weakref.ref[_Iterating]) -> Callable[[], Checkpoint | None] | None:
    """Return `_Iterating.first`, or None if nobody draws from the pass any more.

    Not `weakref.WeakMethod`: its callback is written in Python, so Ctrl-C can come up in it, and
    is printed and lost there.
    """
    iterating = ref()
    return None if iterating is None else iterating.first


def next_checkpoint(
    sampler: Any, last: Checkpoint | None, *, between_passes: bool
) -> Checkpoint | None:
    """Return a checkpoint from which the next pass over a user's sampler begins.

    Args:
        sampler: Yields a batch's indices, or single ones.
        last: The checkpoint at the end of the pass before, if that came to its end.
        between_passes: Whether no pass was broken off.

    Returns:
        None if neither the sampler nor its iterator has a state.
    """
    inner = inner_sampler(sampler)
    if is_stateful(inner):
        return Checkpoint(0, 0, {"sampler": snapshot(inner)}, between_passes=between_passes)
    states = {} if last is None else last.states
    ended = states.get("iterator", states.get("ended"))
    return None if ended is None else Checkpoint(0, 0, {"ended": ended})
