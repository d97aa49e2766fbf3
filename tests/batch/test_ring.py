"""The slot ring: what keeps a slot from being reused, and which slot serves what."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
from support.patience import PATIENCE, Spawn

from threadloader._batch import ring as ring_module
from threadloader._batch.ring import Ring, Slot


class Holder:
    """Stands for a batch that is being filled."""


def take(ring: Ring, nbytes: int, holder: object) -> Slot:
    """Take one slot."""
    (slot,) = ring.take([nbytes], holder)
    return slot


def _deliver(ring: Ring, nbytes: int = 1024) -> np.ndarray[Any, Any]:
    """Return the root array of a batch that was filled."""
    holder = Holder()  # it has to live until the batch is delivered
    root = ring.lease(take(ring, nbytes, holder))
    del holder
    return root


def _kept(ring: Ring, count: int, nbytes: int = 1024) -> list[Slot]:
    """Return the slots of ``count`` batches that are being filled, and let all of them go."""
    holders = [Holder() for _ in range(count)]
    return [take(ring, nbytes, holder) for holder in holders]


@pytest.mark.parametrize(
    ("free", "wanted", "reused"),
    [
        (1024, 1024, True),
        (1024, 1023, True),
        (1024, 1025, False),
        (100_000, 60_000, True),
        (100_000, 40_000, False),
        (4096, 1, False),
    ],
)
def test_a_free_slot_serves_what_fits_and_is_not_far_smaller(
    free: int, wanted: int, reused: bool
) -> None:
    ring = Ring(batches=4)
    ring.enter("epoch")
    [slot] = _kept(ring, 1, free)
    assert (take(ring, wanted, Holder()) is slot) == reused


@pytest.mark.parametrize("nbytes", [1, 63, 64, 65, 4097])
def test_memory_is_large_enough_and_aligned(nbytes: int) -> None:
    ring = Ring(batches=4)
    root = _deliver(ring, nbytes)
    assert root.nbytes >= nbytes
    assert root.ctypes.data % 64 == 0
    assert root.flags.writeable


class Interrupted:
    """A lock in which, each time that it is taken, something else is done first, once."""

    first: Callable[[], object] | None = None

    def __init__(self) -> None:
        self._lock = threading.RLock()

    def acquire(self, blocking: bool = True) -> bool:  # as a lock's
        return self._lock.acquire(blocking)

    def release(self) -> None:
        self._lock.release()

    def __enter__(self) -> None:
        self._lock.acquire()
        first, Interrupted.first = Interrupted.first, None
        if first is not None:
            first()

    def __exit__(self, *error: object) -> None:
        self._lock.release()


@pytest.fixture
def interrupted(monkeypatch: pytest.MonkeyPatch) -> Ring:
    """A ring in whose lock `Interrupted.first` is done, as the collector may do it."""
    monkeypatch.setattr(ring_module, "RLock", Interrupted)
    monkeypatch.setattr(Interrupted, "first", None)
    return Ring(batches=4)


USES: dict[str, Callable[[Ring], object]] = {
    "ends an epoch": lambda ring: ring.leave("epoch"),
    "closes": Ring.clear,
    "takes all slots": lambda ring: _kept(ring, 9),
}


@pytest.mark.parametrize("use", USES.values(), ids=USES)
def test_a_finalizer_may_use_the_ring_while_it_is_locked(
    use: Callable[[Ring], object], interrupted: Ring, spawn: Spawn
) -> None:
    ring = interrupted
    ring.enter("epoch")
    _kept(ring, 3)

    def use_inside() -> list[Slot]:
        Interrupted.first = partial(use, ring)
        return _kept(ring, 3)

    slots = spawn(use_inside).result(PATIENCE)
    assert Interrupted.first is None
    assert len(set(slots)) == 3
    assert ring.statistics().filling == 0


def test_a_slot_that_no_batch_needs_any_more_is_dropped() -> None:
    ring = Ring(batches=4)
    ring.enter("epoch")
    _kept(ring, 9, 1024)
    assert ring.statistics().free == 4
    for _ in range(40):
        _deliver(ring, 1 << 20)
    assert ring.statistics().free_bytes < 3 << 20
    assert ring.statistics().free <= 2


@pytest.fixture
def three_slots() -> Ring:
    """A ring with three free slots, and an epoch that goes on."""
    ring = Ring(batches=4)
    ring.enter("epoch")
    _kept(ring, 3)
    assert ring.statistics().free == 3
    return ring


def test_slots_are_kept_as_long_as_an_epoch_goes_on(three_slots: Ring) -> None:
    three_slots.enter("another")
    three_slots.leave("epoch")
    three_slots.leave("epoch")
    assert three_slots.statistics().free == 3
    three_slots.leave("another")
    assert three_slots.statistics().free == 0


@pytest.mark.parametrize("end", [Ring.clear, lambda ring: ring.leave("epoch")])
def test_what_outlives_its_epoch_is_freed_with_its_last_view(
    end: Callable[[Ring], None], three_slots: Ring
) -> None:
    ring, root = three_slots, _deliver(three_slots)
    end(ring)
    ring.release([])  # of a worker that ends later
    late = _deliver(ring)
    memories = [weakref.ref(_memory(each)) for each in (root, late)]
    assert (ring.statistics().free, ring.statistics().leased) == (0, 2)
    assert [memory() is None for memory in memories] == [False, False]
    del root, late
    # Without a further call of the ring's:
    assert [memory() is None for memory in memories] == [True, True]
    assert ring.statistics().leased == 0
    ring.enter("next")
    _kept(ring, 1)
    assert ring.statistics().free == 1


def _memory(root: Any) -> Any:
    """Return the array whose memory a root shows."""
    return root.base.obj if isinstance(root.base, memoryview) else root.base
