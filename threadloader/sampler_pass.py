"""One pass over the sampler, from any batch on, and what is saved of it to begin there again.

Of known samplers that is what decided their order.  A sampler of the user's that has a
``state_dict`` is asked for its state after each batch; any other is drawn from its beginning
again, and what it gives then is compared with what it gave.
"""

from __future__ import annotations

from operator import index
from typing import TYPE_CHECKING, Any, Protocol

from threadloader import _torch
from threadloader.generators import encoded_state, generator_with, restore_generator, state_of
from threadloader.samplers import (
    batches_of,
    decided_by_seed,
    inner_sampler,
    is_known,
    starting_at,
    with_generator,
)
from threadloader.seeds import draw_seed
from threadloader.stateful import is_stateful, restore, restore_whole, snapshot
from threadloader.ticket import Mark

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from threadloader.position import Position
    from threadloader.seeds import Draws

__all__ = ["KnownPass", "SamplerPass", "UserPass", "mark_between", "open_pass", "order_between"]


class SamplerPass(Protocol):
    """One pass over an index sampler.

    Threads:
        all: planner only.
    """

    known: bool  # whether the sampler is one of torch's or ours
    batches: int  # left out at its beginning
    samples: int  # in them

    def __next__(self) -> Any:
        """Return the sampler's next object: a batch's indices, or a single one."""

    def mark(self, batches: int, samples: int, indices: Sequence[Any]) -> Mark | None:
        """Return what the sampler is like after the batch that it gave last; None if of no use.

        Args:
            batches: Drawn so far.
            samples: In them.
            indices: Of the last one.
        """

    def first(self) -> Mark | None:
        """Return what the sampler was like at its beginning; None if of no use."""

    def order(self) -> Mapping[str, Any] | None:
        """Return what decided the order, JSON-able; None where there is nothing to keep."""


class KnownPass:
    """One pass over a sampler of torch's or our own.

    Args:
        sampler: Yields a batch's indices, or single ones.
        batches: That are left out at the beginning.
        draws: Of the epoch.
        order: As `order` returned it before; None to draw it.
    """

    known = True

    def __init__(
        self, sampler: Any, batches: int, draws: Draws, order: Mapping[str, Any] | None
    ) -> None:
        inner = inner_sampler(sampler)
        self.batches = batches
        self.samples = batches
        if batches and inner is not sampler:
            self.samples = min(batches * sampler.batch_size, len(inner))
        self._order = order
        own = getattr(inner, "generator", None)
        # From the process's random state.
        self._draws_alone = own is None and hasattr(inner, "generator") and not draws.seeded
        self._undecided = self._draws_alone and order is None
        if draws.seeded:
            sampler = with_generator(sampler, draws.generator)
        self._start: Any = None
        if own is not None and own is not draws.generator:
            if order is None:
                self._start = state_of(own)
            else:
                restore_generator(own, order)
        self._sampler = sampler
        self._drawing = self._draw()

    def __next__(self) -> Any:
        return next(self._drawing)

    def mark(self, batches: int, samples: int, indices: Sequence[Any]) -> None:
        """Return None: how far it got says all."""

    def first(self) -> None:
        """Return None, too."""

    def order(self) -> Mapping[str, Any] | None:
        """Return what decided the order; see `SamplerPass`.  If nothing did yet, decide it."""
        if self._undecided:
            self._decide()
        if self._order is None and self._start is not None:
            self._order = encoded_state(self._start)
        return self._order

    def _decide(self) -> None:
        """Draw from the process's random state what torch's sampler would, or keep that state."""
        self._undecided = False
        if decided_by_seed(self._sampler):
            self._order = {"seed": draw_seed(None)}
        else:
            self._start = state_of(None)

    def _draw(self) -> Iterator[Any]:
        """Yield what the sampler does.

        A generator, so that the sampler draws when its first index is asked for, as in torch.
        """
        sampler, order = self._sampler, self._order
        if self._undecided:
            self._decide()
            order = self._order
        if self._draws_alone and order is not None:
            seed = order.get("seed")
            generator = generator_with(order) if seed is None else _torch.new_generator(seed)
            sampler = with_generator(sampler, generator)
        yield from starting_at(sampler, self.batches)


class UserPass:
    """One pass over a sampler of the user's.

    Args:
        sampler: Yields a batch's indices, or single ones.
        every: Batches from one saved state of the sampler to the next; 0 for none.
        start: What to go back to; None for the beginning.
    """

    known = False

    def __init__(self, sampler: Any, every: int = 0, start: Mark | None = None) -> None:
        self._inner = inner = inner_sampler(sampler)
        self._every = every
        self._stateful = is_stateful(inner)
        self._iterator: Any = None
        self._drawing: Iterator[Any]
        self._check: int | None = 0
        self._first: Mark | None = None
        self.batches = self.samples = 0
        states: Mapping[str, Any] = {}
        if start is not None and start.states is not None:
            self.batches, self.samples, states = start.batches, start.samples, start.states
        at_end = start is not None and start.ended
        if "sampler" in states:
            inside = self.batches and not at_end
            give_back = restore if inside else restore_whole
            give_back("sampler", inner, states["sampler"])
        self._saved_iterator = states.get("self", states.get("iterator"))
        if at_end and "self" in states:
            restore_whole("sampler", inner, states["self"])
        if "ended" in states or (at_end and "iterator" in states):
            # A pass that is over may have left something on the sampler, a generator's state say.
            restore("sampler's iterator", iter(inner), states.get("ended", self._saved_iterator))
        self._batch_size = None if inner is sampler else sampler.batch_size
        if at_end:
            self._iterator = iter(())
            self._drawing = self._iterator
        elif inner is sampler:
            self._drawing = self._start()
        else:
            self._drawing = self._draw(sampler.batch_size, drop_last=sampler.drop_last)

    def __next__(self) -> Any:
        return next(self._drawing)

    def mark(self, batches: int, samples: int, indices: Sequence[Any]) -> Mark | None:
        """Return what the sampler is like; see `SamplerPass`."""
        if not self._stateful:
            self._check = _checked(self._check, indices)
            return None if self._check is None else Mark(batches, samples, self._check)
        if not self._every:
            return None
        ended = self._batch_size is not None and len(indices) < self._batch_size
        # After the first, too: nothing else tells where a pass begins that follows a ``break``.
        if ended or batches == 1 or batches % self._every == 0:
            return Mark(batches, samples, None, self._states(), ended)
        return None

    def first(self) -> Mark | None:
        """Return what the sampler's iterator was like; see `SamplerPass`.  Start it, if need be."""
        self._start()
        return self._first

    def order(self) -> None:
        """Return None: what decides the order is the user's."""

    def _draw(self, batch_size: int, *, drop_last: bool) -> Iterator[list[Any]]:
        """Yield a batch's indices, as torch's ``BatchSampler`` does; the sampler starts with it."""
        yield from batches_of(self._start(), batch_size, drop_last=drop_last)

    def _start(self) -> Iterator[Any]:
        """Return the sampler's iterator, which is asked for once."""
        if self._iterator is None:
            self._iterator = iter(self._inner)
            if self._saved_iterator is not None:
                restore("sampler's iterator", self._iterator, self._saved_iterator)
            if self._iterator is not self._inner and is_stateful(self._iterator):
                self._stateful = True
                self._first = Mark(self.batches, self.samples, None, self._states())
        iterator: Iterator[Any] = self._iterator
        return iterator

    def _states(self) -> dict[str, Any]:
        if self._iterator is self._inner:
            states = {"self": self._inner}  # goes back to its beginning, perhaps, when iterated
        else:
            states = {"sampler": self._inner, "iterator": self._iterator}
        return {role: snapshot(value) for role, value in states.items() if is_stateful(value)}


def _checked(check: int | None, indices: Sequence[Any]) -> int | None:
    """Return a number that changes with the order of a sampler, of 32 bits.

    It looks at the first and the last index of each batch, whole numbers; None with others.
    """
    if check is None or not len(indices):
        return check
    try:
        first, last = index(indices[0]), index(indices[-1])
    except (TypeError, ValueError, RuntimeError):
        return None
    return (check * 1_000_003 + first * 31 + last + 1) % (1 << 32)


def open_pass(sampler: Any, draws: Draws, *, every: int, position: Position) -> SamplerPass:
    """Return a pass over ``sampler``.

    Args:
        sampler: Yields a batch's indices, or single ones.
        draws: Of the epoch.
        every: Batches from one saved state of a user's sampler to the next; 0 for none.
        position: Where to begin; with one lane.
    """
    (lane,) = position.lanes
    if is_known(sampler):
        return KnownPass(sampler, lane.batches, draws, position.saved_order)
    return UserPass(sampler, every, lane.mark if position.restored else None)


def mark_between(sampler: Any, last: Mark | None) -> Mark | None:
    """Return what a user's sampler is like between two passes; None if it does not tell.

    Args:
        sampler: Yields a batch's indices, or single ones.
        last: What it was like in the pass before.
    """
    if is_known(sampler):
        return None
    inner = inner_sampler(sampler)
    if is_stateful(inner):
        return Mark(0, 0, None, {"sampler": snapshot(inner)})
    states = last.states if last is not None and last.states is not None else {}
    ended = states.get("iterator", states.get("ended"))
    return None if ended is None else Mark(0, 0, None, {"ended": ended})


def order_between(sampler: Any, given: Any) -> dict[str, Any] | None:
    """Return the state of the generator of a known sampler's own, JSON-able; None for none.

    Args:
        sampler: Yields a batch's indices, or single ones.
        given: The loader's generator, whose state is kept elsewhere.
    """
    own = getattr(inner_sampler(sampler), "generator", None)
    if not is_known(sampler) or own is None or own is given:
        return None
    return encoded_state(state_of(own))
