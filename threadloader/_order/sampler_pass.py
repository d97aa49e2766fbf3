"""One pass over an index sampler, begun at any batch, and what is saved between two passes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

from threadloader._order.known_pass import KnownOrder, KnownPass, order_of_next
from threadloader._order.known_samplers import known, with_generator
from threadloader._order.user_pass import UserPass, mark_of_next

if TYPE_CHECKING:
    from collections.abc import Sequence

    from threadloader._resume.checkpoint import Checkpoint
    from threadloader._resume.position import Position
    from threadloader._rng.seeds import EpochDraws

__all__ = ["SamplerPass", "mark_between", "open_pass", "order_between"]


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
    adapter = known(sampler)
    if adapter is not None:
        order = KnownOrder(adapter, draws, position.saved_order)
        return KnownPass(adapter, lane.batches, order, arrays=arrays)
    if draws.seeded:
        sampler = with_generator(sampler, draws.generator, draws.keyed_generator)
    opened = UserPass(sampler, every, (lane.mark or lane.first) if position.restored else None)
    if lane.first is None and not position.restored:
        lane.find_first = opened.finder_of_first()
    return opened


def mark_between(sampler: Any, last: Checkpoint | None, *, whole: bool) -> Checkpoint | None:
    """Return a checkpoint of a user's sampler between two passes; see `mark_of_next`."""
    return None if known(sampler) is not None else mark_of_next(sampler, last, whole=whole)


def order_between(sampler: Any, given: Any) -> dict[str, Any] | None:
    """Return what decides the next order of a known sampler; see `order_of_next`."""
    adapter = known(sampler)
    return None if adapter is None else order_of_next(adapter, given)
