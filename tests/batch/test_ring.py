"""The slot ring: a finalizer may come up inside its lock.  Which slots it keeps: test_memory.py."""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import partial

import pytest
from support.patience import PATIENCE, Spawn

from threadloader._batch import ring as ring_module
from threadloader._batch.ring import Ring, Slot


class Holder:
    """Stands for a batch that is being filled."""


def _kept(ring: Ring, count: int, nbytes: int = 1024) -> list[Slot]:
    """Return the slots of ``count`` batches that are being filled, and let all of them go."""
    holders = [Holder() for _ in range(count)]
    return [slot for holder in holders for slot in ring.take([nbytes], holder)]


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


USES: dict[str, Callable[[Ring], object]] = {
    "ends an epoch": lambda ring: ring.leave("epoch"),
    "closes": Ring.clear,
    "takes all slots": lambda ring: _kept(ring, 9),
}


@pytest.mark.parametrize("use", USES.values(), ids=USES)
def test_a_finalizer_may_use_the_ring_while_it_is_locked(
    use: Callable[[Ring], object], monkeypatch: pytest.MonkeyPatch, spawn: Spawn
) -> None:
    monkeypatch.setattr(ring_module, "RLock", Interrupted)  # as the collector may run in it
    ring = Ring(batches=4)
    ring.enter("epoch")
    _kept(ring, 3)

    def use_inside() -> list[Slot]:
        Interrupted.first = partial(use, ring)
        return _kept(ring, 3)

    slots = spawn(use_inside).result(PATIENCE)
    assert Interrupted.first is None
    assert len(set(slots)) == 3
    assert ring.statistics().filling == 0
