"""``device=``: errors in their place, and ends with copies in flight that leave nothing behind."""

from __future__ import annotations

import gc
import os
import threading
import weakref
from contextlib import suppress
from typing import Any

import numpy as np
import pytest
from support.child import run_child
from support.copies import Numbers, batches_of, make, numbers, outcomes
from support.fake_device import FakeDevice, OutOfMemoryError
from support.patience import PATIENCE, Spawn, becomes
from support.workers import each_kind_of_workers


@each_kind_of_workers
@pytest.mark.parametrize("full", [[3], [0, 1, 2, 3, 4], [7]], ids=str)
def test_without_memory_on_the_device_a_batch_is_an_error_and_the_next_ones_come(
    full: list[int], workers: dict[str, Any], spawn: Spawn
) -> None:
    device = FakeDevice(fails=full.__contains__)
    with make(Numbers(), device, **workers) as loader:
        first = iter(loader)
        told = spawn(outcomes, first).result(PATIENCE)
        for number, (got, expected) in enumerate(zip(told, batches_of(3), strict=True)):
            if number in full:
                assert isinstance(got, OutOfMemoryError)
                assert got.__notes__ == [f"copying batch {number} to fake:0"]
            else:
                assert got == expected
        second = iter(loader)
        assert spawn(outcomes, second).result(PATIENCE) == batches_of(3)
    # All threads have ended: the loader was closed, and its iterators are alive.
    assert not device.broken
    assert becomes(lambda: loader.statistics().slots.filling == 0)


def test_an_error_of_a_copy_that_outlives_the_epoch_keeps_no_slot(spawn: Spawn) -> None:
    device = FakeDevice(fails=lambda _: True)
    device.hold()
    with make(Numbers(3), device) as loader:
        told = spawn(outcomes, iter(loader)).result(PATIENCE)  # and the copier has the slot
        device.release()
    assert len(told) == 1
    assert becomes(lambda: loader.statistics().slots.filling == 0)


class Pairs(Numbers):
    """Each batch has two leaves that are copied apart."""

    def __getitem__(self, index: int) -> Any:
        return np.full(1 << 16, index), np.full(1 << 16, index)


@pytest.mark.parametrize("kind", ["pending", "fails"])
def test_a_batch_of_which_a_part_was_copied_keeps_its_slots_and_is_whole_or_an_error(
    kind: str, spawn: Spawn
) -> None:
    def firsts(loader: Any) -> list[Any]:
        told: list[Any] = []
        iterator = iter(loader)
        for _ in range(4):
            try:
                told.append([leaf[:, 0].tolist() for leaf in next(iterator)])
            except OutOfMemoryError:
                told.append("no memory")
        return told

    device = FakeDevice(**{kind: lambda number: number == 3})
    with make(Pairs(8), device, batch_size=2) as loader:
        told = spawn(firsts, loader).result(PATIENCE)
    expected: list[Any] = [[batch] * 2 for batch in batches_of(2, 8)]
    if kind == "fails":
        expected[1] = "no memory"
    assert told == expected
    assert not device.broken
    assert becomes(lambda: loader.statistics().slots.filling == 0)


@pytest.mark.parametrize("call", ["adopt", "record", "synchronize", "receive"])
@each_kind_of_workers
def test_a_device_that_is_lost_is_told_and_keeps_nobody_waiting(
    call: str, workers: dict[str, Any], spawn: Spawn
) -> None:
    device = FakeDevice(errors={call: RuntimeError("lost")})
    with make(Numbers(), device, **workers) as loader:
        told = spawn(outcomes, iter(loader)).result(PATIENCE)
        errors = [error for error in told if isinstance(error, Exception)]
        assert set(map(str, errors)) == {"lost"}
        if call in ("adopt", "synchronize"):  # of no one batch: the epoch ends
            assert told[-1:] == errors
        else:
            assert len(told) == 8
        device.errors.clear()
        assert spawn(outcomes, iter(loader)).result(PATIENCE) == batches_of(3)
    assert not device.broken


@pytest.mark.parametrize("lost", [False, True])
def test_the_last_batch_is_freed_unless_the_device_is_lost(lost: bool, spawn: Spawn) -> None:
    device = FakeDevice()

    def consume() -> Any:
        with make(Numbers(), device, threads=1) as loader:
            iterator = iter(loader)
            batch = next(iterator)
            if lost:
                device.errors["record"] = RuntimeError("lost")
            with suppress(RuntimeError):
                device.may_raise("record")
            device.received.clear()
            return weakref.ref(batch)

    kept = spawn(consume).result(PATIENCE)
    gc.collect()
    assert (kept() is not None) == lost


@pytest.mark.parametrize("ends", [True, False])
def test_an_epoch_that_is_over_keeps_no_batch_until_a_collection(ends: bool, spawn: Spawn) -> None:
    device = FakeDevice()
    batches: list[Any] = []

    def consume() -> None:
        with make(Numbers(), device, threads=1) as loader:
            for _ in range(3):
                for batch in loader:
                    batches.append(weakref.ref(batch))
                    if not ends:
                        break

    gc.disable()
    try:
        spawn(consume).result(PATIENCE)
        device.received.clear()
        assert [batch() for batch in batches] == [None] * len(batches)
    finally:
        gc.enable()


@each_kind_of_workers
@pytest.mark.parametrize("ending", ["close", "loader's close", "drop"])
def test_an_end_with_copies_in_flight_keeps_their_slots_and_leaves_no_thread(
    ending: str, workers: dict[str, Any], spawn: Spawn
) -> None:
    device = FakeDevice()
    with make(Numbers(), device, **workers) as loader:
        iterator: Any = iter(loader)
        device.hold()
        batch = spawn(next, iterator).result(PATIENCE)
        spawn(device.await_waiter).result(PATIENCE)
        copiers = [thread for thread in threading.enumerate() if "-copier-" in thread.name]
        done = None
        if ending == "drop":
            del iterator
        else:
            done = spawn(iterator.close if ending == "close" else loader.close)
        others = spawn(outcomes, iter(make(Numbers(), device)))  # would write what is not kept
        device.release()
        if done is not None:
            done.result(PATIENCE)
        others.result(PATIENCE)
        for copier in copiers:
            spawn(copier.join).result(PATIENCE)
        assert spawn(outcomes, iter(loader)).result(PATIENCE) == batches_of(3)
    assert numbers(batch) == [0, 1, 2]
    assert not device.broken


# The end of the process, and forks

SCRIPT = """
import atexit, gc, os, signal, sys, threading
last = []
atexit.register(lambda: [do() for do in last])  # before the package's: it is called after them
sys.modules["torch"] = None
import numpy as np
from support.fake_device import FakeDevice
from threadloader import ClosedError, ThreadLoader
from threadloader._engine import copier
from threadloader._threads import pool

device = FakeDevice()
loader = ThreadLoader(range(100), 4, threads=2, device=device, prefetch=2, output="numpy")
iterator = iter(loader)
next(iterator)
"""


def run(script: str) -> tuple[int, str, str]:
    """Run a child to its end; return its exit code and its outputs."""
    return run_child(SCRIPT + script)


NEVER = (
    "copier.EXIT_SECONDS = 0.1; iterator = iter(loader); next(iterator);"
    "device.hold(); next(iterator); device.await_waiter()"
)
EXITS = {
    "a copy that never ends": NEVER,
    "a copy that ends later than samples are waited for": """
device.hold(); next(iterator); device.await_waiter()
timer = threading.Timer(pool.EXIT_SECONDS + 0.5, device.release)
timer.daemon = True
timer.start()
last.append(lambda: print(*[one for one in threading.enumerate() if "-copier-" in one.name]))
""",
    "a consumer in a daemon thread": """
threading.Thread(target=lambda: [list(loader) for _ in range(10**6)], daemon=True).start()
""",
}


@pytest.mark.parametrize("script", EXITS.values(), ids=EXITS)
def test_the_interpreter_exits_cleanly_with(script: str, spawn: Spawn) -> None:
    assert spawn(run, script).result(3 * PATIENCE) == (0, "", "")


@pytest.mark.skipif(not hasattr(os, "fork"), reason="the system has no fork")
@pytest.mark.parametrize("does", ["iter(loader)", "loader = None"])
def test_a_forked_child_frees_no_slot_of_its_parents(does: str, spawn: Spawn) -> None:
    script = f"""
assert sum(map(len, iterator)) == 96
del iterator
for thread in threading.enumerate():  # the frames of a thread would keep slots
    thread is threading.main_thread() or thread.join()
gc.collect()
child = os.fork()
if child == 0:
    loader._device, loader._opened = FakeDevice(), None
    {does}
    gc.collect()
    print(device.broken, flush=True)
    os._exit(0)
os.waitpid(child, 0)
assert not device.broken
"""
    assert spawn(run, script).result(2 * PATIENCE) == (0, "[]", "")
