"""A pass over any index sampler, begun at any batch; and what a state holds between two passes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

from threadloader._order.known_pass import KnownOrder, KnownPass, next_order
from threadloader._order.known_samplers import is_known, known, with_generator
from threadloader._order.sharded_pass import ShardedKnownPass, ShardedUserPass, units_of
from threadloader._order.user_pass import UserPass, next_checkpoint

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from threadloader._ranks.share import Share
    from threadloader._resume.checkpoint import Checkpoint
    from threadloader._resume.position import Position
    from threadloader._rng.seeds import EpochDraws

__all__ = ["SamplerPass", "checkpoint_between", "open_pass", "order_between"]


class SamplerPass(Protocol):
    """One pass over an index sampler.

    Threads:
        all: planner only.
    """

    known: bool  # whether the sampler is a known one
    own: bool  # whether it gives ranges and arrays that nobody else has, and that never change
    batches: int  # left out at its beginning
    samples: int  # in these batches
    sharded: bool  # whether batches are a rank's shares of global batches
    first: int  # if so: the position in the epoch of the first sample of the batch drawn last

    @property
    def epoch(self) -> int | None:
        """The number of the epoch in a user's sampler; None if it has none."""

    @property
    def order(self) -> KnownOrder | None:
        """The order of a known sampler; None for a sampler of the user's."""

    def __iter__(self) -> Iterator[Any]:
        """Return what yields the sampler's objects: the indices of a batch, or single ones.

        An error does not end it, unless it is a known sampler's.
        """

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

    def length(self) -> int | None:
        """Return the number of batches in all; None if that is not to be compared."""


def open_pass(
    sampler: Any,
    draws: EpochDraws,
    *,
    snapshot_every: int,
    position: Position,
    arrays: bool = False,
    batched: bool = True,
    share: Share | None = None,
    checked: bool = True,
) -> SamplerPass:
    """Return a pass over ``sampler``.

    Args:
        sampler: Yields a batch's indices, or single ones.
        draws: The random draws of the epoch.
        snapshot_every: Batches from one checkpoint of a user's sampler to the next; 0 for none.
        position: Where to begin; has one lane.
        arrays: Whether a batch's indices may be a range or an array.
        batched: Whether a batch has many samples.
        share: Of this rank; None where all is loaded here.
        checked: Whether a user's sampler has the same indices on all ranks, to be compared.
    """
    if share is not None:
        position.count_in(units_of(sampler)[1] * share.world_size)
    (lane,) = position.lanes
    adapter = known(sampler)
    if adapter is not None:
        order = KnownOrder(adapter, draws, position.saved_order)
        if share is None:
            return KnownPass(adapter, lane.batches, order, arrays=arrays)
        return ShardedKnownPass(adapter, lane.batches, order, share, position.origin, arrays=arrays)
    if draws.seeded:
        sampler = with_generator(sampler, draws.generator, draws.keyed_generator)
    start = (lane.checkpoint or lane.first) if position.restored else None
    opened: UserPass | ShardedUserPass
    if share is None:
        opened = UserPass(sampler, snapshot_every, start, checked=checked)
    else:
        opened = ShardedUserPass(
            sampler,
            batched=batched,
            snapshot_every=snapshot_every,
            start=start,
            share=share,
            skip=0 if start is not None and start.batches else position.skip,
        )
    if lane.first is None and not position.restored:
        lane.find_first = opened.finder_of_first()
    return opened


def checkpoint_between(
    sampler: Any, last: Checkpoint | None, *, between_passes: bool
) -> Checkpoint | None:
    """Return a checkpoint of a user's sampler between two passes; see `next_checkpoint`."""
    if is_known(sampler):
        return None
    return next_checkpoint(sampler, last, between_passes=between_passes)


def order_between(sampler: Any, given: Any) -> dict[str, Any] | None:
    """Return the next order of a known sampler, if it has a generator; see `next_order`."""
    adapter = known(sampler)
    return None if adapter is None else next_order(adapter, given)
