"""One pass over the sampler, from any batch on, and what is saved of it to begin there again.

Of known samplers that is what decided their order.  A sampler of the user's that has a
``state_dict`` is asked for its state after each batch; any other is drawn from its beginning
again, and what it gives then is compared with what it gave.

What is suspended in the middle of a pass refers to no object that leads back to it, so that a
pass ends, and with it the user's generators, as soon as nobody draws from it any more.
"""

from __future__ import annotations

import json
import weakref
import zlib
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

from threadloader import _torch
from threadloader._order.samplers import (
    array_batches,
    batches_of,
    decided_by_seed,
    gives_arrays,
    inner_sampler,
    is_known,
    length_of,
    starting_at,
    with_generator,
)
from threadloader._resume.checkpoint import Checkpoint
from threadloader._resume.stateful import is_stateful, restore, restore_whole, snapshot, states_of
from threadloader._rng.generators import encoded_state, generator_with, restore_generator, state_of
from threadloader._rng.seeds import draw_seed

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from threadloader._resume.position import Position
    from threadloader._rng.seeds import EpochDraws

__all__ = [
    "KnownOrder",
    "KnownPass",
    "SamplerPass",
    "UserPass",
    "mark_between",
    "open_pass",
    "order_between",
]


class SamplerPass(Protocol):
    """One pass over an index sampler.

    Threads:
        all: planner only.
    """

    known: bool  # whether the sampler is one of torch's or ours
    own: bool  # whether what it gives is nobody else's, and never changes
    batches: int  # left out at its beginning
    samples: int  # in them

    @property
    def order(self) -> KnownOrder | None:
        """What decides its order; None of a sampler of the user's."""

    def __next__(self) -> Any:
        """Return the sampler's next object: a batch's indices, or a single one."""

    def mark(self, batches: int, samples: int, indices: Sequence[Any]) -> Checkpoint | int | None:
        """Return what tells of the sampler after the batch that it gave last; None if nothing does.

        Args:
            batches: Drawn so far.
            samples: In them.
            indices: Of the last one.

        Returns:
            Its state, or a number that follows from all indices that it gave.
        """

    def length(self) -> int | None:
        """Return how many batches it gives in all, if that tells samplers apart."""


class KnownOrder:
    """What decides the order of one pass over a sampler of torch's or our own.

    Args:
        sampler: Yields a batch's indices, or single ones.
        draws: Of the epoch.
        saved: As `state` returned it before; None to draw it.
    """

    def __init__(self, sampler: Any, draws: EpochDraws, saved: Mapping[str, Any] | None) -> None:
        inner = inner_sampler(sampler)
        own = _own_generator(sampler, draws.generator)
        # From the process's random state.
        has_none = hasattr(inner, "generator") and inner.generator is None
        self._draws_alone = has_none and not draws.seeded
        self._undecided = self._draws_alone and saved is None
        self._saved = saved
        self._start: Any = None  # the state of a generator, as it was
        if own is not None:
            if saved is None:
                self._start = state_of(own)
            else:
                restore_generator(own, saved)
        self._sampler = sampler
        if draws.seeded:
            self._sampler = with_generator(sampler, draws.generator, draws.keyed_generator)

    def state(self) -> Mapping[str, Any] | None:
        """Return it, JSON-able; None where there is nothing to keep.  If need be, decide it."""
        self._decide()
        if self._saved is None and self._start is not None:
            self._saved = encoded_state(self._start)
        return self._saved

    def sampler(self) -> Any:
        """Return what to iterate over: the sampler, or a copy of it; if need be, decide."""
        self._decide()
        order = self._saved
        if not self._draws_alone or order is None:
            return self._sampler
        seed = order.get("seed")
        generator = generator_with(order) if seed is None else _torch.new_generator(seed)
        return with_generator(self._sampler, generator, lambda: generator)

    def _decide(self) -> None:
        """Draw from the process's random state what torch's sampler would, or keep that state."""
        if not self._undecided:
            return
        if decided_by_seed(self._sampler):
            self._saved = {"seed": draw_seed(None)}
        else:
            self._start = state_of(None)
        self._undecided = False  # last: Ctrl-C may come up before


class KnownPass:
    """One pass over a sampler of torch's or our own.

    Args:
        sampler: Yields a batch's indices, or single ones.
        batches: That are left out at the beginning.
        order: Decides it.
        arrays: Whether a batch's indices may be a range or an array.
    """

    known = True

    def __init__(
        self, sampler: Any, batches: int, order: KnownOrder, *, arrays: bool = False
    ) -> None:
        self.own = arrays and gives_arrays(sampler)
        inner = inner_sampler(sampler)
        self.batches = self.samples = batches
        if batches and inner is not sampler:
            self.samples = min(batches * sampler.batch_size, len(inner))
        self.order = order
        self._drawing = _known_batches(order, batches, arrays=self.own)

    def __next__(self) -> Any:
        return next(self._drawing)

    def mark(self, batches: int, samples: int, indices: Sequence[Any]) -> None:
        """Return None: how far it got says all."""

    def length(self) -> None:
        """Return None: it was compared when the state was loaded."""


def _known_batches(order: KnownOrder, batches: int, *, arrays: bool) -> Iterator[Any]:
    """Yield what a known sampler does.

    A generator, so that the sampler draws when its first index is asked for, as in torch.
    """
    sampler = order.sampler()
    begin = array_batches if arrays else starting_at
    yield from begin(sampler, batches)


class UserPass:
    """One pass over a sampler of the user's.

    Args:
        sampler: Yields a batch's indices, or single ones.
        every: Batches from one saved state of the sampler to the next; 0 for none.
        start: What to go back to; None for the beginning.
    """

    known = own = False
    order = None

    def __init__(self, sampler: Any, every: int = 0, start: Checkpoint | None = None) -> None:
        inner = inner_sampler(sampler)
        self._sampler = sampler
        self._every = every
        self._check: int | None = 0
        self.batches = self.samples = 0
        states: Mapping[str, Any] = {}
        over = False
        if start is not None:
            self.batches, self.samples, states = start.batches, start.samples, start.states
            over = start.ended
            _restore_sampler(inner, start)
        self._batch_size = None if inner is sampler else sampler.batch_size
        self.iterating = _Iterating(inner, states.get("self", states.get("iterator")), over=over)
        self._drawing: Iterator[Any]
        if inner is sampler:
            self._drawing = self.iterating.start()
        else:
            self._drawing = _user_batches(
                self.iterating, sampler.batch_size, drop_last=sampler.drop_last
            )

    def __next__(self) -> Any:
        return next(self._drawing)

    def mark(self, batches: int, samples: int, indices: Sequence[Any]) -> Checkpoint | int | None:
        """Return what the sampler is like, or a check of what it gave; see `SamplerPass`."""
        if not self.iterating.stateful:
            self._check = _checked(self._check, indices)
            return self._check
        if not self._every:
            return None
        ended = self._batch_size is not None and len(indices) < self._batch_size
        if ended or batches == 1 or batches % self._every == 0:
            return Checkpoint(batches, samples, self.iterating.states(), ended=ended)
        return None

    def length(self) -> int | None:
        """Return how many batches it gives in all; of one with a state that may depend on it."""
        return None if self.iterating.stateful else length_of(self._sampler)


class _Iterating:
    """The iterator of a user's sampler, which is asked for once.

    Args:
        sampler: Yields single indices, or is the user's own batch sampler.
        saved: State of its iterator, to go on from; None for none.
        over: Whether the pass is over: there is nothing to iterate over.
    """

    def __init__(self, sampler: Any, saved: Any, *, over: bool) -> None:
        self._sampler = sampler
        self._saved = saved
        self._iterator: Any = iter(()) if over else None
        self._first: Checkpoint | None = None
        self.stateful = is_stateful(sampler)

    def start(self) -> Iterator[Any]:
        """Return the iterator."""
        if self._iterator is None:
            self._iterator = iter(self._sampler)
            if self._saved is not None:
                restore("sampler's iterator", self._iterator, self._saved)
            if not self.stateful and is_stateful(self._iterator):
                self.stateful = True
                self._first = Checkpoint(0, 0, self.states())
        iterator: Iterator[Any] = self._iterator
        return iterator

    def first(self) -> Checkpoint | None:
        """Return what the iterator was like at its beginning, where the sampler has no state."""
        self.start()
        return self._first

    def states(self) -> dict[str, Any]:
        """Return the states of the user's objects, by role."""
        return states_of("sampler", self._sampler, self._iterator)


def _user_batches(
    iterating: _Iterating, batch_size: int, *, drop_last: bool
) -> Iterator[list[Any]]:
    """Yield a batch's indices, as torch's ``BatchSampler`` does; the sampler starts with it."""
    yield from batches_of(iterating.start(), batch_size, drop_last=drop_last)


def _restore_sampler(sampler: Any, mark: Checkpoint) -> None:
    """Give a user's sampler the state in which a pass goes on, or begins."""
    states = mark.states
    give_back = restore_whole if mark.whole or mark.ended else restore
    if "sampler" in states:
        give_back("sampler", sampler, states["sampler"])
    elif mark.ended and "self" in states:
        give_back("sampler", sampler, states["self"])
    # A pass that is over may have left something on the sampler, a generator's state say.
    ended = states.get("ended", states.get("iterator") if mark.ended else None)
    if ended is not None:
        restore("sampler's iterator", iter(sampler), ended)


def _checked(check: int | None, indices: Sequence[Any]) -> int | None:
    """Return a number that follows from another and from indices; None for ones without a value.

    Of whole numbers it is the sum that counts, and which come first and last: a tenth of what it
    costs to look at their order, too.
    """
    if check is None or not len(indices):
        return check
    try:
        # Of NumPy's narrow ones the sum would be narrow, too.
        numbers = indices if type(indices[0]) is int else [int(index) for index in indices]
        told = (int(sum(numbers)), int(indices[0]), int(indices[-1]))
        return (check * 1_000_003 + told[0] * 8_191 + told[1] * 31 + told[2] + 1) % (1 << 32)
    except (TypeError, ValueError, RuntimeError, OverflowError):
        pass
    try:
        return zlib.crc32(json.dumps(indices).encode(), check)  # strings, tuples
    except (TypeError, ValueError):
        return None


def open_pass(
    sampler: Any, draws: EpochDraws, *, every: int, position: Position, arrays: bool = False
) -> SamplerPass:
    """Return a pass over ``sampler``.

    Args:
        sampler: Yields a batch's indices, or single ones.
        draws: Of the epoch.
        every: Batches from one saved state of a user's sampler to the next; 0 for none.
        position: Where to begin; with one lane.
        arrays: Whether a batch's indices may be a range or an array.
    """
    (lane,) = position.lanes
    if is_known(sampler):
        order = KnownOrder(sampler, draws, position.saved_order)
        return KnownPass(sampler, lane.batches, order, arrays=arrays)
    if draws.seeded:
        sampler = with_generator(sampler, draws.generator, draws.keyed_generator)
    opened = UserPass(sampler, every, (lane.mark or lane.first) if position.restored else None)
    if lane.first is None and not position.restored:
        lane.find_first = partial(_finder_of_first, weakref.ref(opened.iterating))
    return opened


def _finder_of_first(
    ref: weakref.ref[_Iterating],
) -> Callable[[], Checkpoint | None] | None:
    """Return what finds out what an iterator was like at its beginning, if that still lives.

    Not `weakref.WeakMethod`: its callback is written in Python, so Ctrl-C can come up in it, and
    is printed and lost there.
    """
    iterating = ref()
    return None if iterating is None else iterating.first


def mark_between(sampler: Any, last: Checkpoint | None, *, whole: bool) -> Checkpoint | None:
    """Return what a user's sampler is like between two passes; None if it does not tell.

    Args:
        sampler: Yields a batch's indices, or single ones.
        last: What it was like in the pass before, if that came to its end.
        whole: Whether none was broken off.
    """
    if is_known(sampler):
        return None
    inner = inner_sampler(sampler)
    if is_stateful(inner):
        return Checkpoint(0, 0, {"sampler": snapshot(inner)}, whole=whole)
    states = {} if last is None else last.states
    ended = states.get("iterator", states.get("ended"))
    return None if ended is None else Checkpoint(0, 0, {"ended": ended})


def order_between(sampler: Any, given: Any) -> dict[str, Any] | None:
    """Return the state of the generator of a known sampler's own, JSON-able; None for none.

    Args:
        sampler: Yields a batch's indices, or single ones.
        given: The loader's generator, whose state is kept elsewhere.
    """
    own = _own_generator(sampler, given) if is_known(sampler) else None
    return None if own is None else encoded_state(state_of(own))


def _own_generator(sampler: Any, given: Any) -> Any:
    """Return the generator of a known sampler, if it has one and that is not the one given."""
    own = getattr(inner_sampler(sampler), "generator", None)
    return None if own is given else own
