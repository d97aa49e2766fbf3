"""The batches of one epoch: drawn from the sampler, in the consumer's thread, and numbered.

Batches that were delivered before a state was saved are left out, and the sampler is refused if
it does not give what it gave then.
"""

from __future__ import annotations

from array import array
from collections import deque
from copy import copy
from typing import TYPE_CHECKING, Any

import numpy as np

from threadloader import _torch
from threadloader._order.samplers import KnownPass
from threadloader._order.tickets import PlannedBatch
from threadloader.errors import StateError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from threadloader._order.resume import Lane
    from threadloader._order.sampler_pass import SamplerPass, UserPass


NO_LENGTH = """the order follows from the dataset's length: give it a __len__, or the loader a \
sampler or batch_sampler"""


class Planner:
    """Draws the batches of one epoch from the sampler.

    Args:
        sampler: Yields a batch's indices, or one index if not ``batched``.
        lane: Tells which batches were delivered already: they are left out.
        batched: Whether a batch has many samples; else it is one sample, not collated.
        whole_batches: Whether the dataset's ``__getitems__`` is called with what the sampler
            yields.  That may then be any object, a slice or an iterator, and counts as one row.

    Threads:
        all: planner only.
    """

    def __init__(
        self, sampler: SamplerPass, lane: Lane, *, batched: bool, whole_batches: bool = False
    ) -> None:
        self._lane = lane
        self._ahead = set(lane.ahead)
        self._delivered = lane.batches
        self._drawn = sampler.batches  # of the batches delivered
        self._refused: str | None = None  # why the sampler does not fit the state
        # To be compared with the saved one; a known one needs not be.
        self._other = None if isinstance(sampler, KnownPass) else sampler
        self._drawing = _drawing(sampler, batched=batched, whole_batches=whole_batches)
        self._first: list[PlannedBatch | Exception | None] = []  # drawn ahead: one, or none
        self._goes_on = False  # whether nothing is left to compare, nor to leave out

    def start(self) -> None:
        """Let the sampler draw its first batch: with that it may draw the order."""
        self._first = [next(self._drawing, None)]

    def draw(self) -> PlannedBatch | None:
        """Return the next batch that was not delivered, or None after the last.

        Raises:
            StateError: The sampler does not give what it gave when the state was saved.  Each
                further call raises it, too.
            Exception: The sampler's.  The next call goes on with what the sampler yields then.
        """
        if self._goes_on:
            return self._draw()
        if self._other is not None:
            self._compare(self._other)
        if self._drawn < self._delivered:
            self._leave_out()
        if self._refused is not None:
            raise StateError(self._refused)  # a new one: an error keeps the frames it came through
        batch = self._draw()
        while self._ahead and batch is not None and batch.sequence in self._ahead:
            self._ahead.discard(batch.sequence)
            self._lane.drawn_again(batch.sequence, batch.checkpoint)
            batch = self._draw()
        self._goes_on = not self._ahead
        return batch

    def _compare(self, sampler: UserPass) -> None:
        """Compare the sampler's length with the saved one.

        Not before the first batch is asked for: ``set_epoch()`` may be called until then, and
        change the length.
        """
        self._other = None
        length, before = sampler.length(), self._lane.length
        if before is not None and length is not None and length != before:
            self._refused = f"the sampler has {length} batches, and had {before}"
        self._lane.length = length

    def _leave_out(self) -> None:
        """Draw the batches that were delivered already, and compare them with the saved check."""
        check = self._lane.check
        while self._refused is None and self._drawn < self._delivered:
            batch = self._draw()
            if batch is None:
                self._refused = (
                    f"the sampler ended after batch {self._drawn}, but {self._delivered} were "
                    "delivered when the state was saved"
                )
                return
            self._drawn += 1
            at, found = self._drawn, batch.checkpoint
            if check is not None and at == check[0] and type(found) is int and found != check[1]:
                self._refused = (
                    f"the sampler gives other indices (batches 1 to {at}) than when the state was "
                    "saved: it needs a seed, or a state_dict(); or it is another sampler, or rank"
                )

    def _draw(self) -> PlannedBatch | None:
        drawn = self._first.pop() if self._first else next(self._drawing, None)
        if isinstance(drawn, Exception):
            raise drawn
        return drawn


def _drawing(
    sampler: SamplerPass, *, batched: bool, whole_batches: bool
) -> Iterator[PlannedBatch | Exception]:
    """Yield the batches of the sampler, and its errors.

    A generator, because an error keeps the frames that called the sampler's code.  While a
    generator is suspended, these frames end here and do not lead to the epoch and its batches.
    """
    sequence, position = sampler.batches, sampler.samples
    # torch accepts any iterable.  What can be changed is copied: some samplers fill one list or
    # array again and again.
    known, sharded = isinstance(sampler, KnownPass), sampler.sharded
    kept = (list, tuple, range, np.ndarray) if known else (tuple,)
    objects = iter(sampler)
    while True:
        try:
            drawn = next(objects)
        except StopIteration:
            return
        except Exception as error:  # noqa: BLE001  # raised to the consumer, in its turn
            yield _with_advice(error, sampler, None)
            continue
        if not batched or (whole_batches and not isinstance(drawn, (list, tuple))):
            drawn = drawn if known else _kept(drawn)
            indices: Any = (drawn,)
        else:
            try:
                indices = drawn if type(drawn) in kept else list(drawn)
            except Exception as error:  # noqa: BLE001  # the same
                yield _with_advice(error, sampler, drawn)
                continue
            drawn = indices if type(drawn) is list else drawn
        first, position = sampler.first if sharded else position, position + len(indices)
        checkpoint = None
        if not isinstance(sampler, KnownPass):
            try:
                checkpoint = sampler.checkpoint(sequence + 1, position, indices)
            except Exception as error:  # noqa: BLE001  # the same, from a state_dict()
                yield error
        yield PlannedBatch(sequence, indices, drawn, first, "index", checkpoint, sharded)
        sequence += 1


# What a sampler may refill for each batch.
_REFILLED = (np.ndarray, list, dict, bytearray, array, deque)


def _kept(drawn: Any) -> Any:
    """Return what a sampler has yielded, as it is now."""
    if isinstance(drawn, _torch.Tensor):
        return drawn.clone()
    if type(drawn) is tuple:
        return tuple(map(_kept, drawn))
    if type(drawn) is dict:
        return {key: _kept(value) for key, value in drawn.items()}
    return copy(drawn) if isinstance(drawn, _REFILLED) else drawn


def _with_advice(error: Exception, sampler: SamplerPass, drawn: Any) -> Exception:
    """Return an error, with a note that says what to do about it if that is known."""
    if type(error) is TypeError:
        if isinstance(sampler, KnownPass) and str(error).endswith("has no len()"):  # the dataset
            error.add_note(NO_LENGTH)
        elif drawn is not None and not hasattr(drawn, "__iter__"):
            error.add_note(f"batch_sampler must yield lists of indices, but gave {drawn!r}")
    return error
