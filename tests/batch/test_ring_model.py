"""The slot ring against a model: nothing that anybody can still see is ever handed out."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from threadloader._batch.ring import Ring, Slot

KEEP = 3
SIZES = st.sampled_from([1, 64, 100, 1000, 5000, 6000, 24_000, 30_000])


class Holder:
    """Stands for a batch that is being filled."""


@dataclass
class Filling:
    """A slot with its holder, and what was written into it."""

    slot: Slot
    writers: list[Holder]  # the same holder, once for each that references it
    stamp: int

    def intact(self) -> bool:
        return bool((np.frombuffer(self.slot.memory, np.uint8) == self.stamp).all())


@dataclass
class Delivered:
    """All views of one batch that are still alive."""

    views: list[np.ndarray[Any, Any]]
    nbytes: int
    stamp: int

    def intact(self) -> bool:
        return all((view == self.stamp).all() for view in self.views)


def _position(data: st.DataObject, entries: list[Any]) -> int:
    # Hypothesis keeps what it draws: drawing the entry itself would keep it alive.
    return data.draw(st.integers(0, len(entries) - 1))


class RingMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.ring = Ring(KEEP)
        self.ring.enter("epoch")
        self.stamp = 0
        self.filling: list[Filling] = []
        self.delivered: list[Delivered] = []
        self.stale: list[Holder] = []  # of slots that were freed or delivered before they died

    @rule(nbytes=SIZES)
    def take(self, nbytes: int) -> None:
        self.stamp += 1
        holder = Holder()
        (slot,) = self.ring.take([nbytes], holder)
        assert slot.nbytes >= nbytes
        np.frombuffer(slot.memory, np.uint8)[:] = self.stamp
        self.filling.append(Filling(slot, [holder], self.stamp))

    @precondition(lambda self: self.filling)
    @rule(data=st.data())
    def another_writer_starts(self, data: st.DataObject) -> None:
        writers = self.filling[_position(data, self.filling)].writers
        writers.append(writers[0])

    @precondition(lambda self: self.filling)
    @rule(data=st.data())
    def a_writer_ends(self, data: st.DataObject) -> None:
        at = _position(data, self.filling)
        self.filling[at].writers.pop()
        if not self.filling[at].writers:
            del self.filling[at]

    @precondition(lambda self: self.filling)
    @rule(data=st.data(), lingers=st.booleans())
    def lease(self, data: st.DataObject, lingers: bool) -> None:
        filled, holder = self._finish(data, lingers=lingers)
        root = self.ring.lease(filled.slot)
        del holder
        self.delivered.append(Delivered([root], filled.slot.nbytes, filled.stamp))

    @precondition(lambda self: self.filling)
    @rule(data=st.data(), lingers=st.booleans())
    def release(self, data: st.DataObject, lingers: bool) -> None:
        self.ring.release([self._finish(data, lingers=lingers)[0].slot])

    @precondition(lambda self: self.stale)
    @rule(data=st.data())
    def a_stale_holder_dies(self, data: st.DataObject) -> None:
        self.stale.pop(_position(data, self.stale))

    @precondition(lambda self: self.delivered)
    @rule(data=st.data())
    def view_a_view(self, data: st.DataObject) -> None:
        views = self.delivered[_position(data, self.delivered)].views
        view = views[_position(data, views)]
        views.append(view[data.draw(st.integers(0, len(view))) :])

    @precondition(lambda self: self.delivered)
    @rule(data=st.data())
    def a_view_dies(self, data: st.DataObject) -> None:
        at = _position(data, self.delivered)
        views = self.delivered[at].views
        views.pop(_position(data, views))
        if not views:
            del self.delivered[at]

    def _finish(self, data: st.DataObject, *, lingers: bool) -> tuple[Filling, Holder]:
        filled = self.filling.pop(_position(data, self.filling))
        holder = filled.writers[0]
        if lingers:
            self.stale.append(filled.writers[0])
        filled.writers.clear()
        return filled, holder

    @invariant()
    def nothing_visible_is_overwritten(self) -> None:
        assert all(batch.intact() for batch in [*self.filling, *self.delivered])

    @invariant()
    def every_slot_is_counted_in_its_state(self) -> None:
        stats = self.ring.statistics()
        assert stats.filling == len(self.filling)
        assert stats.leased == len(self.delivered)
        assert stats.leased_bytes == sum(batch.nbytes for batch in self.delivered)

    @invariant()
    def free_slots_are_bounded(self) -> None:
        stats = self.ring.statistics()
        assert stats.free <= KEEP
        assert stats.made >= stats.free + stats.filling + stats.leased


TestRing = RingMachine.TestCase
TestRing.settings = settings(max_examples=60, stateful_step_count=40)
