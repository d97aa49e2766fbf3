"""The slot ring: what keeps a slot from being reused, and which slot serves what."""

from __future__ import annotations

import copy
import pickle
import threading
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from conftest import PATIENCE

from threadloader import ring as ring_module
from threadloader.ring import Ring, RingStatistics, Slot

if TYPE_CHECKING:
    from collections.abc import Callable
    from concurrent.futures import Future


class Holder:
    """Stands for a batch that is being filled."""


def _deliver(ring: Ring, nbytes: int = 1000) -> np.ndarray[Any, Any]:
    """Return the root array of a batch that was filled."""
    holder = Holder()  # it has to live until the batch is delivered
    root = ring.lease(ring.take(nbytes, holder))
    del holder
    return root


def _kept(ring: Ring, count: int, nbytes: int = 1000) -> list[Slot]:
    """Return the slots of ``count`` batches that are being filled, and let all of them go."""
    holders = [Holder() for _ in range(count)]
    return [ring.take(nbytes, holder) for holder in holders]


def test_a_slot_being_filled_is_not_handed_out_again() -> None:
    ring = Ring(keep=4)
    first, second = Holder(), Holder()
    assert ring.take(1000, first) is not ring.take(1000, second)


def test_a_batch_that_is_abandoned_gives_its_slot_back() -> None:
    ring = Ring(keep=4)
    [slot] = _kept(ring, 1)
    assert ring.take(1000, Holder()) is slot


def test_an_abandoned_batch_keeps_its_slot_until_its_last_writer_is_done() -> None:
    ring = Ring(keep=4)
    batch = Holder()
    slot = ring.take(1000, batch)
    writers = [batch, batch]
    del batch
    writers.pop()
    assert ring.take(1000, Holder()) is not slot
    writers.pop()
    assert slot in [ring.take(1000, holder) for holder in (Holder(), Holder())]


def test_a_delivered_batch_outlives_its_holder() -> None:
    ring = Ring(keep=4)
    holder = Holder()
    root = ring.lease(ring.take(1000, holder))
    del holder
    assert ring.statistics() == RingStatistics(
        made=1, free=0, filling=0, leased=1, leased_bytes=root.nbytes
    )


def test_a_delivered_batch_gives_its_slot_back_when_it_dies() -> None:
    ring = Ring(keep=4)
    root = _deliver(ring)
    address = root.ctypes.data
    del root
    assert ring.statistics() == RingStatistics(made=1, free=1, filling=0, leased=0, leased_bytes=0)
    assert _deliver(ring).ctypes.data == address


VIEWS: dict[str, Callable[[np.ndarray[Any, Any]], object]] = {
    "slice": lambda root: root[8:16],
    "row of rows": lambda root: root.reshape(10, 100)[3][5:],
    "other dtype": lambda root: root[:800].view(np.float64),
    "transposed": lambda root: root.reshape(10, 100).T,
    "read-only": lambda root: np.broadcast_to(root, (3, 1000)),
    "iterated": lambda root: next(iter(root.reshape(10, 100))),
    "memoryview": memoryview,
    "of its memoryview": lambda root: np.asarray(memoryview(root)[4:]),
    "buffer of a view": lambda root: np.frombuffer(root[10:], np.uint8),
    "as_strided": lambda root: np.lib.stride_tricks.as_strided(root, (2,), (1,)),
    "sliding": lambda root: np.lib.stride_tricks.sliding_window_view(root, 4),
    "structured field": lambda root: root[:900].view([("a", "u1", 8), ("b", "u1")])["b"],
    "dlpack": lambda root: np.from_dlpack(root[3:]),
    "empty": lambda root: root[:0],
}


@pytest.mark.parametrize("view", VIEWS.values(), ids=VIEWS)
def test_any_view_keeps_the_slot(view: Callable[[Any], object]) -> None:
    ring = Ring(keep=4)
    kept = view(_deliver(ring))
    assert ring.statistics().leased == 1
    del kept
    assert ring.statistics().leased == 0


TENSORS: dict[str, Callable[[Any, Any], object]] = {
    "from_numpy": lambda torch, root: torch.from_numpy(root),
    "view of a tensor": lambda torch, root: torch.from_numpy(root)[4:].view(-1, 2)[1],
    "from a view": lambda torch, root: torch.from_numpy(root[8:].view(np.float32)[2:]),
    "detached": lambda torch, root: torch.from_numpy(root).detach(),
    "storage": lambda torch, root: torch.from_numpy(root).untyped_storage(),
    "array of a tensor": lambda torch, root: torch.from_numpy(root)[2:].numpy(),
    "as_tensor": lambda torch, root: torch.as_tensor(root),
    "unbound": lambda torch, root: torch.from_numpy(root.reshape(10, 100)).unbind()[7],
    "frombuffer": lambda torch, root: torch.frombuffer(root, dtype=torch.uint8),
    "dlpack": lambda torch, root: torch.from_dlpack(root[5:]),
}


@pytest.mark.parametrize("view", TENSORS.values(), ids=TENSORS)
def test_any_tensor_keeps_the_slot(view: Callable[[Any, Any], object]) -> None:
    torch = pytest.importorskip("torch")
    ring = Ring(keep=4)
    kept = view(torch, _deliver(ring))
    assert ring.statistics().leased == 1
    del kept
    assert ring.statistics().leased == 0


def test_autograd_keeps_the_slot_that_it_saved() -> None:
    torch = pytest.importorskip("torch")
    ring = Ring(keep=4)
    weight = torch.ones(100, requires_grad=True)
    loss = (torch.from_numpy(_deliver(ring)[:400].view(np.float32)) * weight).sum()
    assert ring.statistics().leased == 1
    loss.backward()
    assert ring.statistics().leased == 0


@pytest.mark.parametrize(
    "copied", [np.copy, copy.deepcopy, lambda root: pickle.loads(pickle.dumps(root)), bytes]
)
def test_a_copy_keeps_no_slot(copied: Callable[[Any], object]) -> None:
    ring = Ring(keep=4)
    kept = copied(_deliver(ring))
    assert kept is not None
    assert ring.statistics().leased == 0


def test_a_batch_is_never_overwritten() -> None:
    ring = Ring(keep=1)
    batches = []
    for stamp in range(10):
        root = _deliver(ring)
        root[:] = stamp
        batches.append(root[stamp:])
    assert [set(batch.tolist()) for batch in batches] == [{stamp} for stamp in range(10)]


def test_a_plain_loop_needs_two_slots() -> None:
    ring = Ring(keep=4)
    for _ in range(10):
        batch = _deliver(ring)
    del batch
    assert ring.statistics().made == 2


def test_each_delivery_has_a_root_of_its_own() -> None:
    ring = Ring(keep=4)
    holder = Holder()
    slot = ring.take(1000, holder)
    assert ring.lease(slot) is not ring.lease(slot)


def test_an_array_over_a_slot_writes_what_the_delivered_batch_shows() -> None:
    ring = Ring(keep=4)
    holder = Holder()
    slot = ring.take(4, holder)
    np.frombuffer(slot.memory, np.uint8)[:4] = [1, 2, 3, 4]
    assert ring.lease(slot)[:4].tolist() == [1, 2, 3, 4]


def test_a_freed_slot_serves_the_next_batch() -> None:
    ring = Ring(keep=4)
    holder = Holder()
    slot = ring.take(1000, holder)
    ring.free(slot)
    assert ring.take(1000, Holder()) is slot


def test_the_late_death_of_a_freed_batch_does_not_free_its_successor() -> None:
    ring = Ring(keep=4)
    late, successor = Holder(), Holder()
    slot = ring.take(1000, late)
    ring.free(slot)
    assert ring.take(1000, successor) is slot
    del late
    assert ring.take(1000, Holder()) is not slot
    del successor


def test_freeing_twice_frees_once() -> None:
    ring = Ring(keep=4)
    holder = Holder()
    slot = ring.take(1000, holder)
    ring.free(slot)
    ring.free(slot)
    del holder
    assert ring.statistics().free == 1


def test_no_more_free_slots_are_kept_than_asked_for() -> None:
    ring = Ring(keep=2)
    _kept(ring, 5)
    assert ring.statistics() == RingStatistics(made=5, free=2, filling=0, leased=0, leased_bytes=0)


def test_the_slot_longest_unused_is_dropped_first() -> None:
    ring = Ring(keep=2)
    holders = [Holder() for _ in range(3)]
    slots = [ring.take(1000, holder) for holder in holders]
    for slot in slots:
        ring.free(slot)
    now = [Holder() for _ in range(3)]
    taken = [ring.take(1000, holder) for holder in now]
    assert [slot in taken for slot in slots] == [False, True, True]


def test_a_ring_that_keeps_nothing_makes_a_slot_a_batch() -> None:
    ring = Ring(keep=0)
    for _ in range(3):
        _deliver(ring)
    assert ring.statistics().made == 3
    assert ring.statistics().free == 0


@pytest.mark.parametrize(
    ("free", "wanted", "reused"),
    [
        (1000, 1000, True),
        (1000, 999, True),
        (1000, 1001, False),
        (100_000, 30_000, True),
        (100_000, 20_000, False),
        (4096, 1, True),
    ],
)
def test_a_free_slot_serves_what_fits_and_is_not_far_smaller(
    free: int, wanted: int, reused: bool
) -> None:
    ring = Ring(keep=4)
    [slot] = _kept(ring, 1, free)
    assert (ring.take(wanted, Holder()) is slot) == reused


def test_the_smallest_slot_that_fits_is_taken() -> None:
    ring = Ring(keep=4)
    holders = [Holder() for _ in range(3)]
    large, small, medium = (
        ring.take(nbytes, holder)
        for nbytes, holder in zip([40_000, 20_000, 30_000], holders, strict=True)
    )
    del holders
    now = [Holder() for _ in range(3)]
    assert [ring.take(15_000, holder) for holder in now] == [small, medium, large]


@pytest.mark.parametrize("nbytes", [0, 1, 63, 64, 65, 4097])
def test_memory_is_large_enough_and_aligned(nbytes: int) -> None:
    ring = Ring(keep=4)
    root = _deliver(ring, nbytes)
    assert root.nbytes >= nbytes
    assert root.ctypes.data % 64 == 0
    assert root.flags.writeable


def test_statistics_tell_what_the_consumer_holds() -> None:
    ring = Ring(keep=4)
    holder = Holder()
    filling = ring.take(10, holder)
    roots = [_deliver(ring, 1000), _deliver(ring, 2000)]
    assert ring.statistics() == RingStatistics(
        made=3, free=0, filling=1, leased=2, leased_bytes=3000
    )
    assert filling.nbytes == 10
    del roots


def test_a_view_may_die_while_the_ring_is_locked(
    monkeypatch: pytest.MonkeyPatch, spawn: Callable[..., Future[Any]]
) -> None:
    doomed: list[object] = []

    class Garbage(threading.Condition):
        """Collects garbage just after it was locked, and cannot be locked twice."""

        def __init__(self) -> None:
            super().__init__(threading.Lock())

        def __enter__(self) -> bool:
            entered = super().__enter__()
            doomed.clear()
            return entered

    monkeypatch.setattr(ring_module, "Condition", Garbage)
    ring = Ring(keep=4)

    def die_inside() -> RingStatistics:
        # By the thread that made it: another's death of it would wait for that thread.
        doomed.append(_deliver(ring))
        return ring.statistics()

    assert spawn(die_inside).result(PATIENCE).free == 1


def test_a_batch_that_dies_in_another_thread_gives_its_slot_back(
    spawn: Callable[..., Future[Any]],
) -> None:
    ring = Ring(keep=4)
    mailbox = [_deliver(ring)[10:]]
    spawn(mailbox.clear).result(PATIENCE)
    assert ring.statistics().free == 1


def test_a_view_outlives_its_ring() -> None:
    root = _deliver(Ring(keep=4))
    root[:] = 7
    assert set(root.tolist()) == {7}
    del root  # its callback has no ring to tell


@pytest.mark.parallel
def test_threads_that_take_and_drop_never_share_a_slot(
    spawn: Callable[..., Future[Any]],
) -> None:
    ring = Ring(keep=2)

    def stamp_and_check(stamp: int) -> bool:
        for _ in range(200):
            root = _deliver(ring, 256)
            root[:] = stamp
            if set(root.tolist()) != {stamp}:
                return False
            del root
        return True

    stamping = [spawn(stamp_and_check, stamp) for stamp in range(4)]
    assert all(future.result(PATIENCE) for future in stamping)
    assert ring.statistics().free <= 2


def test_a_consumer_that_keeps_many_large_batches_is_told_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(ring_module, "HELD_NBYTES", 20_000)
    ring = Ring(keep=2)
    kept = [_deliver(ring) for _ in range(19)]
    ring.warn_if_hoarded()  # warnings are errors here
    kept += [_deliver(ring)]
    with pytest.warns(UserWarning, match="20 batches"):
        ring.warn_if_hoarded()
    ring.warn_if_hoarded()
