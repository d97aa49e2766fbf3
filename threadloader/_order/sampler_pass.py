"""A pass over a sampler, begun at any batch; of the user's own, with its checkpoints or checks.

The passes over known samplers are those of `samplers`.

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
from itertools import islice
from operator import index
from typing import TYPE_CHECKING, Any, TypeAlias

from threadloader._order.resume import (
    Checkpoint,
    is_stateful,
    restore,
    restore_whole,
    snapshot,
    states_of,
)
from threadloader._order.samplers import (
    SPAN,
    BatchSampler,
    KnownOrder,
    KnownPass,
    batches_of,
    inner_sampler,
    is_batching,
    is_known,
    known,
    length_of,
    own_generator,
    units_of,
    with_generator,
)
from threadloader._order.seeds import encoded_state, state_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from threadloader._order.resume import Position
    from threadloader._order.seeds import EpochDraws
    from threadloader._order.share import Share


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

    sharded = False  # whether batches are a rank's shares of global batches
    order = None
    first = 0  # if so: the position in the epoch of the first sample of the batch drawn last

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
        self.iterating = _Iterating(
            inner, states.get("self", states.get("iterator")), over=over, skip=skip, count=count
        )
        self._drawing: Iterator[Any]
        if inner is sampler:
            self._drawing = iter(self.iterating)
        else:  # which begins to iterate when its first batch is asked for
            size, drop_last = sampler.batch_size, sampler.drop_last
            self._drawing = batches_of(self.iterating, size, drop_last=drop_last)

    def __iter__(self) -> Iterator[Any]:
        return self._drawing

    def checkpoint(
        self, batches: int, samples: int, indices: Sequence[Any]
    ) -> Checkpoint | int | None:
        """Return a checkpoint taken after the last batch, or a check of all indices, or None.

        Args:
            batches: Batches drawn so far.
            samples: Samples in them.
            indices: The indices of the last batch.

        Returns:
            A `Checkpoint` if the sampler or its iterator has a state.  A check, which is a number
            that follows from all indices so far, if neither has.  None if there is nothing to save.
        """
        if not self.iterating.stateful:
            self._check = _checked(self._check, indices)
            return self._check
        if not self._snapshot_every:
            return None
        ended = self._batch_size is not None and len(indices) < self._batch_size
        if ended or batches == 1 or batches % self._snapshot_every == 0:
            return Checkpoint(batches, samples, self.iterating.states(), ended=ended)
        return None

    def length(self) -> int | None:
        """Return the number of batches in all; None if the sampler has a state.

        A state may change the length.
        """
        return None if self.iterating.stateful else length_of(self._sampler)


class ShardedUserPass(UserPass):
    """A rank's part of a pass over a sampler of the user's.

    Each rank draws all of it, as nobody knows what comes next.

    Args:
        sampler: Yields a batch's indices, or single ones.
        batched: Whether a rank's batch has many samples.
        snapshot_every: Batches from one checkpoint to the next; 0 for none.
        start: The checkpoint to go back to; None for the beginning.
        share: Of the rank.
        skip: Units that come after ``start`` and before the first batch.
    """

    sharded = True

    def __init__(
        self,
        sampler: Any,
        *,
        batched: bool,
        snapshot_every: int,
        start: Checkpoint | None,
        share: Share,
        skip: int,
    ) -> None:
        units, size, drop_last = units_of(sampler)
        self._share, self._size, self._drop_last = share, size, drop_last
        self._single = not batched
        self._has_batches = batched and not is_batching(sampler)  # whether a unit is a batch
        self._step = size * share.world_size
        self._count = _samples_in_batches if self._has_batches else len
        whole = BatchSampler(units, self._step, drop_last=False)
        super().__init__(whole, snapshot_every, start, skip=skip, count=self._count)
        self._position = self.samples  # of the first sample of the next global batch
        self._units: Sequence[Any] = ()  # of the global batch that was drawn last

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        units = self._units = next(self._drawing)
        before = self._position + self.iterating.skipped
        self._position += self._count(units)
        mine = self._share.of(len(units), self._size)
        if not mine or (self._drop_last and len(units) < self._step):
            raise StopIteration
        # A padded batch goes on at the beginning of the global one.
        padded = [units[number % len(units)] for number in range(mine.stop)]
        own = padded[mine.start :]
        self.first = before + self._count(padded[: mine.start])
        return own[0] if self._single or self._has_batches else own

    def checkpoint(
        self,
        batches: int,
        samples: int,  # noqa: ARG002  # of this rank
        indices: Sequence[Any],  # noqa: ARG002  # the same
    ) -> Checkpoint | int | None:
        """Return a checkpoint, or a check, of the global batches; see `UserPass.checkpoint`."""
        return super().checkpoint(batches, self._position + self.iterating.skipped, self._units)


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
        self._saved = saved
        self._iterator: Any = iter(()) if over else None
        self._first: Checkpoint | None = None
        self.stateful = is_stateful(sampler)

    def __iter__(self) -> Iterator[Any]:
        """Return the iterator, made by the first call."""
        if self._iterator is None:
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

    def first(self) -> Checkpoint | None:
        """Return a checkpoint of the iterator at its beginning; None if the sampler has a state."""
        iter(self)
        return self._first

    def states(self) -> dict[str, Any]:
        """Return the states of the user's objects, by role."""
        return states_of("sampler", self._sampler, self._iterator)


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


def _first_of(ref: weakref.ref[_Iterating]) -> Checkpoint | None:
    """Return `_Iterating.first`, or None if nobody draws from the pass any more.

    Not `weakref.WeakMethod`: its callback is written in Python, so Ctrl-C can come up in it, and
    is printed and lost there.
    """
    iterating = ref()
    return None if iterating is None else iterating.first()


def _samples_in_batches(batches: Sequence[Any]) -> int:
    """Return how many samples some batches of a user's batch sampler have."""
    return sum(len(batch) if hasattr(batch, "__len__") else 1 for batch in batches)


SamplerPass: TypeAlias = UserPass | KnownPass


def open_pass(
    settings: Any, draws: EpochDraws, position: Position, share: Share | None, *, checked: bool
) -> SamplerPass | None:
    """Return a pass over the sampler of a loader; None where there is no sampler.

    Args:
        settings: Of the loader.
        draws: The random draws of the epoch.
        position: Where to begin; has one lane.
        share: Of this rank; None where all is loaded here.
        checked: Whether a user's sampler has the same indices on all ranks, to be compared.

    Raises:
        StateError: The position is another sampler's.
        ValueError: A `TokenBatches` has the lengths of another dataset.
    """
    if settings.iterable:
        return None
    sampler, snapshot_every = settings.index_sampler, settings.snapshot_every_n_steps or 0
    check_samples = getattr(sampler, "check_samples", None)  # of a `TokenBatches`
    samples = None if check_samples is None else length_of(settings.dataset)
    if check_samples is not None and samples is not None:
        check_samples(samples)
    if share is not None:
        position.count_in(units_of(sampler)[1] * share.world_size)
    (lane,) = position.lanes
    adapter = known(sampler)
    if adapter is not None:
        order = KnownOrder(adapter, draws, (position.saved or {}).get("order"))
        # The threads make the indices of ranges and arrays, each those that it needs.
        arrays, origin = not settings.whole_batches, position.origin
        return KnownPass(adapter, lane.batches, order, arrays=arrays, share=share, origin=origin)
    if draws.seeded:
        sampler = with_generator(sampler, draws.generator, draws.order_seed)
    start = (lane.checkpoint or lane.first) if position.restored else None
    opened: UserPass
    if share is None:
        opened = UserPass(sampler, snapshot_every, start, checked=checked)
    else:
        opened = ShardedUserPass(
            sampler,
            batched=settings.batched,
            snapshot_every=snapshot_every,
            start=start,
            share=share,
            skip=0 if start is not None and start.batches else position.skip,
        )
    if lane.first is None and not position.restored:
        lane.find_first = partial(_first_of, weakref.ref(opened.iterating))
    return opened


def checkpoint_between(
    sampler: Any, last: Checkpoint | None, *, between_passes: bool
) -> Checkpoint | None:
    """Return a checkpoint from which the next pass over a user's sampler begins.

    Args:
        sampler: Yields a batch's indices, or single ones.
        last: The checkpoint at the end of the pass before, if that came to its end.
        between_passes: Whether no pass was broken off.

    Returns:
        None for a known sampler, and if neither the sampler nor its iterator has a state.
    """
    if is_known(sampler):
        return None
    inner = inner_sampler(sampler)
    if is_stateful(inner):
        return Checkpoint(0, 0, {"sampler": snapshot(inner)}, between_passes=between_passes)
    states = {} if last is None else last.states
    ended = states.get("iterator", states.get("ended"))
    return None if ended is None else Checkpoint(0, 0, {"ended": ended})


def order_between(sampler: Any, given: Any) -> dict[str, Any] | None:
    """Return the order of the next pass over a known sampler: the state of its own generator.

    Args:
        sampler: Yields a batch's indices, or single ones.
        given: The loader's generator, whose state is saved elsewhere.

    Returns:
        JSON-able; None if the sampler has no generator of its own.
    """
    adapter = known(sampler)
    own = None if adapter is None else own_generator(adapter, given)
    return None if own is None else encoded_state(state_of(own))
