"""The slot ring: what keeps a slot from being reused, and which slot serves what."""

from __future__ import annotations

import threading
import weakref
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest
from support.patience import PATIENCE

from threadloader._batch import ring as ring_module
from threadloader._batch.ring import Ring, Slot

if TYPE_CHECKING:
    from collections.abc import Callable
    from concurrent.futures import Future

    import numpy as np


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
    use: Callable[[Ring], object], interrupted: Ring, spawn: Callable[..., Future[Any]]
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


def test_a_consumer_that_keeps_many_large_batches_is_told_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(ring_module, "HELD_NBYTES", 20_000)
    ring = Ring(batches=2)
    kept = [_deliver(ring) for _ in range(19)]
    ring.warn_if_hoarded()  # warnings are errors here
    kept += [_deliver(ring)]
    with pytest.warns(UserWarning, match="20 large tensors"):
        ring.warn_if_hoarded()
    ring.warn_if_hoarded()


def test_a_slot_that_no_batch_needs_any_more_is_dropped() -> None:
    ring = Ring(batches=4)
    ring.enter("epoch")
    _kept(ring, 3, 1024)
    for _ in range(40):
        _deliver(ring, 1 << 20)
    assert ring.statistics().free_bytes < 3 << 20
    assert ring.statistics().free <= 2


@pytest.fixture
def three_slots(monkeypatch: pytest.MonkeyPatch) -> Ring:
    """A ring with three free slots of 3 KiB, of which it keeps two between epochs; and an epoch."""
    monkeypatch.setattr(ring_module, "IDLE_NBYTES", 7 << 10)
    ring = Ring(batches=4)
    ring.enter("epoch")
    _kept(ring, 3, 3 << 10)
    assert ring.statistics().free == 3
    return ring


def test_what_another_epoch_needs_is_kept(three_slots: Ring) -> None:
    three_slots.enter("another")
    three_slots.leave("epoch")
    three_slots.leave("epoch")
    assert three_slots.statistics().free == 3
    three_slots.leave("another")
    assert three_slots.statistics().free == 2


def test_what_comes_back_after_the_epoch_is_not_kept_either(three_slots: Ring) -> None:
    ring, roots = three_slots, [_deliver(three_slots, 3 << 10) for _ in range(4)]
    ring.leave("epoch")
    memories = [weakref.ref(_memory(root)) for root in roots]
    roots.clear()
    # Without a further call of the ring's:
    assert [memory() is None for memory in memories].count(True) == 2
    assert ring.statistics().free == 2


def test_nothing_is_kept_once_it_was_cleared(three_slots: Ring) -> None:
    ring, root = three_slots, _deliver(three_slots, 1024)
    ring.clear()
    assert ring.statistics().free == 0
    kept = weakref.ref(_memory(root))
    del root
    assert kept() is None
    ring.enter("next")
    _kept(ring, 1)
    assert ring.statistics().free == 1


def test_the_ring_whose_epoch_ends_last_alone_keeps_free_slots(three_slots: Ring) -> None:
    another = Ring(batches=4)
    another.enter("epoch")
    _kept(another, 1)
    three_slots.leave("epoch")
    assert (three_slots.statistics().free, another.statistics().free) == (2, 1)
    another.leave("epoch")
    assert (three_slots.statistics().free, another.statistics().free) == (0, 1)


def test_an_epoch_that_goes_on_gives_nothing_away(three_slots: Ring) -> None:
    three_slots.leave("epoch")
    three_slots.enter("next")
    Ring(batches=4).enter("epoch")
    assert three_slots.statistics().free == 2


def test_page_locked_memory_serves_no_other_ring(three_slots: Ring) -> None:
    three_slots.leave("epoch")
    locked = Ring(4, lambda nbytes: (memoryview(bytearray(nbytes)), "locked"))
    locked.enter("epoch")
    assert (three_slots.statistics().free, locked.statistics().free) == (2, 0)
    _kept(locked, 1)
    locked.leave("epoch")
    assert (three_slots.statistics().free, locked.statistics().free) == (2, 1)


def test_what_comes_back_to_a_ring_whose_slots_another_has_is_not_kept(three_slots: Ring) -> None:
    kept = _deliver(three_slots, 3 << 10)
    three_slots.leave("epoch")
    another = Ring(batches=4)
    another.enter("epoch")
    assert (three_slots.statistics().free, another.statistics().free) == (0, 2)
    del kept
    assert three_slots.statistics().free == 0


def _memory(root: Any) -> Any:
    """Return the array whose memory a root shows."""
    return root.base.obj if isinstance(root.base, memoryview) else root.base


@pytest.mark.parametrize("in_order", [True, False])
def test_what_outlives_its_epoch_is_counted_as_long_as_it_lives(
    in_order: bool, three_slots: Ring
) -> None:
    kept = [_deliver(three_slots, 3 << 10) for _ in range(6)]
    three_slots.leave("epoch")
    assert three_slots.statistics().leased == 6
    while kept:
        del kept[0 if in_order else -1]
        assert three_slots.statistics().leased == len(kept)
    three_slots.warn_if_hoarded()
