"""A rank's part of a pass over an index sampler: its share of each global batch.

    sampler -> units -> global batches -> `Share.of` -> the indices of this rank

The units are numbered over the whole epoch, and a state counts them: a pass can go on after any
unit, with another number of ranks or another batch size.  Positions in the epoch, which decide
what a sample draws, are those of the global order.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from threadloader._order.samplers import SPAN, BatchSampler, is_batching
from threadloader._order.user_pass import UserPass

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from numpy.typing import NDArray

    from threadloader._order.known_pass import KnownOrder
    from threadloader._order.known_samplers import KnownSampler
    from threadloader._ranks.share import Share
    from threadloader._resume.checkpoint import Checkpoint

__all__ = ["ShardedKnownPass", "ShardedUserPass", "units_of"]


def units_of(index_sampler: Any) -> tuple[Any, int, bool]:
    """Return what yields the units of a pass, how many a rank's batch has, and ``drop_last``.

    Args:
        index_sampler: Yields a batch's indices, or single ones.
    """
    if is_batching(index_sampler):
        return index_sampler.sampler, index_sampler.batch_size, index_sampler.drop_last
    return index_sampler, 1, False


class ShardedKnownPass:
    """A rank's part of a pass over a known sampler; see `SamplerPass`.

    Args:
        sampler: The sampler.
        batches: How many are left out at the beginning.
        order: Decides the order.
        share: Of the rank.
        origin: Units that come before the first batch.
        arrays: Whether a batch's indices may be an array.
    """

    known = sharded = True
    epoch = None
    own = False  # batches do not follow one another: no two can be made as one

    def __init__(
        self,
        sampler: KnownSampler,
        batches: int,
        order: KnownOrder,
        share: Share,
        origin: int,
        *,
        arrays: bool = False,
    ) -> None:
        self.batches = batches
        self.order = order
        self.first = 0
        units, size, drop_last = units_of(sampler.index_sampler)
        self.samples = batches * size
        self._drawing = _known_shares(
            order,
            share,
            range(origin + batches * size * share.world_size, len(units)),
            len(units),
            size,
            drop_last=drop_last,
        )
        self._convert = _kept if arrays else _listed
        self._single = not is_batching(sampler.index_sampler)

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        self.first, indices = next(self._drawing)
        listed = self._convert(indices)
        return listed[0] if self._single else listed

    def checkpoint(self, batches: int, samples: int, indices: Sequence[Any]) -> None:
        """Return None: the number of batches says all."""

    def length(self) -> None:
        """Return None: it was compared when the state was loaded."""


def _known_shares(
    order: KnownOrder, share: Share, left: range, units: int, size: int, *, drop_last: bool
) -> Iterator[tuple[int, NDArray[Any] | list[Any]]]:
    """Yield the position of the first sample of each batch, and the indices.

    A generator, so that the sampler draws when its first index is asked for, as in torch.

    Args:
        order: Decides the order.
        share: Of the rank.
        left: The units that are left.
        units: How many there are in all.
        size: Units in a rank's batch.
        drop_last: Whether a last global batch that is not whole is left out.
    """
    at = order.sampler().random_access()
    step = size * share.world_size
    own = share.of(step, size).start
    whole, rest = divmod(len(left), step)
    several = max(1, SPAN // size)  # batches that are computed at once
    for number in range(0, whole, several):
        firsts = left.start + own + step * np.arange(number, min(whole, number + several))
        indices = at((firsts[:, None] + np.arange(size)).ravel())
        for row, first in enumerate(firsts.tolist()):
            yield first, indices[row * size : (row + 1) * size]
    mine = share.of(rest, size)
    if drop_last or not mine:
        return
    positions = left.start + whole * step + np.arange(mine.start, mine.stop)
    yield int(positions[0]), at(positions % units)  # a padded batch goes on at the beginning


def _kept(indices: Any) -> Any:
    return indices


def _listed(indices: NDArray[Any] | list[Any]) -> list[Any]:
    return indices.tolist() if isinstance(indices, np.ndarray) else indices


class ShardedUserPass:
    """A rank's part of a pass over a sampler of the user's; see `SamplerPass`.

    Each rank draws all of it, as nobody knows what comes next.

    Args:
        sampler: Yields a batch's indices, or single ones.
        batched: Whether a rank's batch has many samples.
        snapshot_every: Batches from one checkpoint to the next; 0 for none.
        start: The checkpoint to go back to; None for the beginning.
        share: Of the rank.
        skip: Units that come after ``start`` and before the first batch.
    """

    known = own = False
    sharded = True
    order = None

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
        self._pass = UserPass(whole, snapshot_every, start, skip=skip, count=self._count)
        self.batches = self._pass.batches
        self.samples = self.first = 0
        self._position = self._pass.samples  # of the first sample of the next global batch
        self._units: Sequence[Any] = ()  # of the global batch that was drawn last
        self._drawing = iter(self._pass)

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        units = self._units = next(self._drawing)
        before = self._position + self._pass.skipped
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
        """Return a checkpoint, or a check, of the global batches; see `SamplerPass`."""
        return self._pass.checkpoint(batches, self._position + self._pass.skipped, self._units)

    @property
    def epoch(self) -> int | None:
        """The number of the sampler's epoch; see `UserPass.epoch`."""
        return self._pass.epoch

    def finder_of_first(self) -> Callable[[], Callable[[], Checkpoint | None] | None]:
        """Return the `Lane.find_first` of this pass, which does not keep it alive."""
        return self._pass.finder_of_first()

    def length(self) -> int | None:
        """Return the number of global batches in all; see `UserPass.length`."""
        return self._pass.length()


def _samples_in_batches(batches: Sequence[Any]) -> int:
    """Return how many samples some batches of a user's batch sampler have."""
    return sum(len(batch) if hasattr(batch, "__len__") else 1 for batch in batches)
