"""The slot ring under a controlled scheduler: no order of switches hands out memory in use."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from support.patience import PATIENCE

from threadloader._batch import ring as ring_module
from threadloader._batch.ring import Ring, Slot

if TYPE_CHECKING:
    from collections.abc import Callable

    import numpy as np

it = pytest.importorskip("interleave_test", reason="needs Python 3.12")

pytestmark = pytest.mark.interleaving


class Holder:
    """Stands for a batch that is being filled."""


@pytest.fixture(autouse=True)
def controlled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ring_module, "RLock", it.RLock)


def _together(*functions: Callable[[], object]) -> None:
    for thread in [it.spawn(function) for function in functions]:
        thread.join()


def take(ring: Ring, holder: object) -> Slot:
    """Take one slot."""
    (slot,) = ring.take([16], holder)
    return slot


def _deliver(ring: Ring) -> np.ndarray[Any, Any]:
    """Return the root array of a batch that was filled."""
    holder = Holder()
    root = ring.lease(take(ring, holder))
    del holder
    return root


def test_a_slot_is_taken_once_however_its_last_view_dies() -> None:
    def scenario() -> None:
        ring = Ring(batches=4)
        ring.enter("epoch")
        views: list[Any] = [_deliver(ring)]
        holders = [Holder(), Holder()]
        taken: list[Slot] = []

        def take_one(holder: Holder) -> None:
            taken.append(take(ring, holder))

        _together(views.clear, lambda: take_one(holders[0]), lambda: take_one(holders[1]))
        assert taken[0] is not taken[1]

    it.explore(scenario, timeout=PATIENCE, iterations=120, seed=0)


def test_the_holders_death_never_ends_the_lease_of_the_delivered_batch() -> None:
    def scenario() -> None:
        ring = Ring(batches=4)
        ring.enter("epoch")
        holders = [Holder()]
        slot = take(ring, holders[0])
        roots: list[Any] = []
        taken: list[Slot] = []
        other = Holder()

        def deliver() -> None:
            roots.append(ring.lease(slot))
            holders.clear()

        _together(deliver, lambda: taken.append(take(ring, other)))
        assert taken[0] is not slot
        assert ring.statistics().leased == 1

    it.explore(scenario, timeout=PATIENCE, iterations=120, seed=0)


def test_no_switch_between_a_dying_view_and_a_take_loses_the_slot() -> None:
    """Exhaustive: all schedules with at most two preemptions, between any two lines."""

    def scenario() -> None:
        ring = Ring(batches=1)
        ring.enter("epoch")
        views: list[Any] = [_deliver(ring)[4:]]
        holders = [Holder()]
        _together(views.clear, lambda: take(ring, holders[0]))
        assert ring.statistics().made <= 2
        holders.clear()
        assert ring.statistics().free == 1

    result = it.explore(
        scenario, timeout=PATIENCE, iterations=20_000, strategy="dfs", granularity="line"
    )
    assert result.exhausted
