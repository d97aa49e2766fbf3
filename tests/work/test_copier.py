"""The copier: in order, no further ahead than told, and slots that go back after their copies."""

from __future__ import annotations

import gc
import threading
import traceback
import weakref
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from support.fake_device import NOT_THERE, FakeDevice, OutOfMemoryError
from support.patience import PATIENCE

from threadloader._batch.collate import Collation
from threadloader._batch.pinned_memory import StagingMemory
from threadloader._batch.ring import Ring
from threadloader._fetch.failure import Failure
from threadloader._order.tickets import PlannedBatch, TicketSize
from threadloader._work.copier import Copier
from threadloader._work.open_batch import OpenBatch, Pipeline
from threadloader._work.progress import Progress

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from support.patience import Spawn

KEEP = 16  # free slots
ROWS = 4

each_order = pytest.mark.parametrize("in_order", [True, False])


class Setting:
    """A copier, and what it is given: batch ``n`` has ``ROWS`` times the number ``n``."""

    def __init__(
        self, device: FakeDevice, ahead: int = 2, *, in_order: bool = True, name: str = "tl"
    ) -> None:
        self.device = device
        self.progress = Progress()
        self.ring = Ring(KEEP, device.allocate)
        staging = partial(StagingMemory, self.ring)
        collation = Collation(
            None, output="numpy", batched=True, ring=self.ring, memory=staging, pin=device.pin
        )
        self._pipeline = Pipeline(True, TicketSize(), collation)
        self.copier = Copier(device.here(), self.progress, ahead, in_order=in_order, name=name)
        self.copier.start()

    def plan(self, count: int) -> list[OpenBatch]:
        """Put so many batches, none of which is done."""
        batches = []
        for number in range(count):
            plan = PlannedBatch(number, [number] * ROWS, None)
            batches.append(OpenBatch(plan, self._pipeline, self.progress, begin=False))
            self.copier.put(batches[-1])
        return batches

    def fill(self, batch: OpenBatch, samples: list[Any] | None = None) -> None:
        """Let a batch be done."""
        if samples is None:
            samples = [np.full(3, batch.plan.sequence)] * ROWS
        filling = self._pipeline.collation.open(ROWS)
        filling.write(0, ROWS, samples)
        assert filling.finish() is None
        batch.filling = filling
        self.progress.collated(batch, None)

    def filled(self, count: int) -> list[OpenBatch]:
        batches = self.plan(count)
        for batch in batches:
            self.fill(batch)
        return batches

    def fail(self, batch: OpenBatch) -> None:
        self.progress.collated(batch, Failure(LookupError(batch.plan.sequence), 0))

    def get(self, batch: OpenBatch) -> Any:
        assert self.copier.wait(batch)
        return self.copier.take(batch).batch

    def end(self) -> None:
        self.progress.close()
        self.copier.nudge()
        self.copier.join()


@pytest.fixture
def start() -> Iterator[Callable[..., Setting]]:
    """Make settings whose threads end with the test, without a rule broken."""
    begun: list[Setting] = []

    def make(device: FakeDevice | None = None, **arguments: Any) -> Setting:
        begun.append(Setting(device or FakeDevice(), **arguments))
        return begun[-1]

    yield make
    for setting in begun:
        setting.device.release()
        setting.end()
        assert not setting.device.broken


@pytest.mark.parametrize("seed", range(5))
def test_batches_arrive_in_order_whatever_the_order_in_which_they_are_done(
    seed: int, start: Callable[..., Setting], spawn: Spawn
) -> None:
    setting = start(FakeDevice(seed))
    batches = setting.plan(3)
    for batch in reversed(batches):
        assert not setting.copier.has(batches[0])
        setting.fill(batch)
    got = [spawn(setting.get, batch).result(PATIENCE).tolist() for batch in batches]
    assert got == [[[number] * 3] * ROWS for number in range(3)]


def test_out_of_order_a_batch_arrives_as_soon_as_it_is_done(
    start: Callable[..., Setting], spawn: Spawn
) -> None:
    setting = start(in_order=False)
    batches = setting.plan(3)
    waiter = spawn(setting.copier.wait_for_any, batches)
    setting.fill(batches[1])
    assert waiter.result(PATIENCE)
    assert [setting.copier.has(batch) for batch in batches] == [False, True, False]


@pytest.mark.parametrize("ahead", [1, 2, 3])
@each_order
def test_no_more_batches_are_on_the_device_than_the_one_due_and_those_ahead(
    ahead: int, in_order: bool, start: Callable[..., Setting], spawn: Spawn
) -> None:
    setting = start(ahead=ahead, in_order=in_order)
    batches = setting.filled(8)
    assert spawn(setting.copier.wait, batches[ahead]).result(PATIENCE)
    assert not setting.copier.has(batches[1 + ahead])
    for batch in batches:
        spawn(setting.get, batch).result(PATIENCE)
    assert setting.device.most_ahead == 1 + ahead


def test_what_is_not_done_in_time_is_told(start: Callable[..., Setting], spawn: Spawn) -> None:
    setting = start()
    batches = setting.plan(2)
    assert not spawn(setting.copier.wait, batches[0], 0.01).result(PATIENCE)
    assert not spawn(setting.copier.wait_for_any, batches, 0.01).result(PATIENCE)
    setting.fill(batches[0])
    assert spawn(setting.get, batches[0]).result(PATIENCE).tolist() == [[0] * 3] * ROWS


@each_order
def test_who_waits_is_let_go_when_the_epoch_is_closed(
    in_order: bool, start: Callable[..., Setting], spawn: Spawn
) -> None:
    setting = start(in_order=in_order)
    batches = setting.plan(2)
    waiter = spawn(setting.copier.wait if in_order else setting.copier.wait_for_any, batches[0])
    if not in_order:
        waiter = spawn(setting.copier.wait_for_any, batches)
    spawn(setting.end).result(PATIENCE)
    assert waiter.result(PATIENCE)
    assert not setting.copier.has(batches[0])


def test_a_batch_is_there_for_the_consumers_stream_before_its_copy_has_finished(
    start: Callable[..., Setting], spawn: Spawn
) -> None:
    setting = start(FakeDevice(held=True))
    (batch,) = setting.filled(1)
    got = spawn(setting.get, batch).result(PATIENCE)
    assert got.tobytes() == bytes([NOT_THERE]) * got.nbytes
    setting.device.release()
    spawn(setting.end).result(PATIENCE)
    assert got.tolist() == [[0] * 3] * ROWS


def test_a_slot_is_given_back_when_its_copy_has_finished_and_not_before(
    start: Callable[..., Setting], spawn: Spawn
) -> None:
    setting = start(FakeDevice(held=True))
    (batch,) = setting.filled(1)
    spawn(setting.get, batch).result(PATIENCE)
    del batch
    spawn(setting.device.await_waiter).result(PATIENCE)
    assert (setting.ring.statistics().filling, setting.ring.statistics().free) == (1, 0)
    setting.device.release()
    spawn(setting.end).result(PATIENCE)
    assert (setting.ring.statistics().filling, setting.ring.statistics().free) == (0, 1)


def test_a_copy_in_flight_keeps_its_slot_when_the_epoch_is_closed(
    start: Callable[..., Setting], spawn: Spawn
) -> None:
    setting = start(FakeDevice(held=True))
    setting.filled(3)
    spawn(setting.device.await_waiter).result(PATIENCE)
    joined = spawn(setting.end)
    gc.collect()
    assert setting.ring.statistics().free == 0
    setting.device.release()
    joined.result(PATIENCE)
    gc.collect()
    assert setting.ring.statistics().filling == 0


def test_a_closed_epoch_keeps_no_slot_of_batches_that_were_not_copied(
    start: Callable[..., Setting], spawn: Spawn
) -> None:
    setting = start(FakeDevice(held=True))
    first, late = setting.plan(2)
    setting.fill(first)
    spawn(setting.device.await_waiter).result(PATIENCE)  # for the first: it looks at nothing else
    setting.fill(late)
    batches = setting.filled(3)
    gone = weakref.ref(batches[-1].filling)
    setting.progress.close()
    setting.device.release()
    spawn(setting.end).result(PATIENCE)
    gc.disable()
    try:
        del first, late, batches
        assert gone() is None
    finally:
        gc.enable()
    assert setting.ring.statistics().filling == 0


@each_order
def test_failed_batches_take_no_room(
    in_order: bool, start: Callable[..., Setting], spawn: Spawn
) -> None:
    setting = start(ahead=1, in_order=in_order)
    batches = setting.plan(7)
    for batch in batches[:-1]:
        setting.fail(batch)
    setting.fill(batches[-1])
    for batch in batches:
        assert spawn(setting.copier.wait, batch).result(PATIENCE)
    assert spawn(setting.get, batches[-1]).result(PATIENCE)[0][0] == 6
    assert setting.device.copies == 1


def test_batches_that_the_device_has_no_memory_for_take_no_room(
    start: Callable[..., Setting], spawn: Spawn
) -> None:
    setting = start(FakeDevice(fails=lambda number: number < 6), ahead=1)
    batches = setting.filled(7)
    for batch in batches[:-1]:
        assert spawn(setting.copier.wait, batch).result(PATIENCE)
        assert batch.failure is not None
        assert isinstance(batch.failure.error, OutOfMemoryError)
    assert spawn(setting.get, batches[-1]).result(PATIENCE)[0][0] == 6


def test_without_memory_a_batch_is_copied_again_once_a_batch_that_was_taken_is_done_with(
    start: Callable[..., Setting], spawn: Spawn
) -> None:
    setting = start(FakeDevice(pending=lambda number: number == 2), ahead=3)
    first, second, third = setting.plan(3)
    for batch in (first, second):
        setting.fill(batch)
        spawn(setting.get, batch).result(PATIENCE)
    assert setting.device.reached == 0
    setting.fill(third)
    assert spawn(setting.get, third).result(PATIENCE)[0][0] == 2
    assert setting.device.reached == 1


def test_memory_that_comes_between_two_copies_of_a_batch_is_used(
    start: Callable[..., Setting], spawn: Spawn
) -> None:
    setting = start(FakeDevice(pending=lambda number: number == 1))
    (batch,) = setting.plan(1)
    setting.fill(batch, [(np.zeros(1 << 16), np.ones(1 << 16))] * ROWS)  # two copies
    got = spawn(setting.get, batch).result(PATIENCE)
    spawn(setting.end).result(PATIENCE)
    assert [leaf.mean() for leaf in got] == [0, 1]


def test_a_batch_in_no_slot_is_copied_again_too(
    start: Callable[..., Setting], spawn: Spawn
) -> None:
    class Once(dict[str, BaseException]):
        def __getitem__(self, key: str) -> BaseException:
            return self.pop(key)

    setting = start(FakeDevice(errors=Once(move=OutOfMemoryError())))
    (batch,) = setting.plan(1)
    setting.fill(batch, ["a", 1, "b", 2])
    assert spawn(setting.get, batch).result(PATIENCE) == ("moved", ["a", 1, "b", 2])


def test_an_error_of_a_copy_names_batch_and_device_and_has_no_frames(
    start: Callable[..., Setting], spawn: Spawn
) -> None:
    setting = start(FakeDevice(fails=lambda number: number == 1))
    batches = setting.filled(2)
    assert spawn(setting.copier.wait, batches[1]).result(PATIENCE)
    assert batches[1].failure is not None
    error = batches[1].failure.error
    assert error.__notes__ == ["copying batch 1 to fake:0"]
    frames = [frame.filename for frame in traceback.extract_tb(error.__traceback__)]
    assert {Path(name).name for name in frames} == {"fake_device.py"}  # none of threadloader's


@pytest.mark.parametrize("held", [False, True])
def test_a_batch_of_which_a_part_is_on_its_way_keeps_its_slot(
    held: bool, start: Callable[..., Setting], spawn: Spawn
) -> None:
    setting = start(FakeDevice(fails=lambda number: number == 1, held=held))
    (batch,) = setting.plan(1)
    setting.fill(batch, [(np.zeros(1 << 16), np.zeros(1 << 16))] * ROWS)  # two copies
    assert spawn(setting.copier.wait, batch).result(PATIENCE)
    assert batch.failure is not None
    del batch
    if held:
        spawn(setting.device.await_waiter).result(PATIENCE)
        assert setting.ring.statistics().filling == 1
    setting.device.release()
    spawn(setting.end).result(PATIENCE)
    assert setting.ring.statistics().free == 1


# The last is what an accelerator does after an error in a kernel of the user's: every call
# raises it, and the consumer must be told, not left waiting.
FAILING = [
    ("adopt",),
    ("record",),
    ("synchronize",),
    ("synchronize", "record"),
]


@pytest.mark.parametrize("calls", FAILING, ids="+".join)
def test_a_device_that_fails_leaves_nobody_waiting(
    calls: tuple[str, ...], start: Callable[..., Setting], spawn: Spawn
) -> None:
    setting = start(FakeDevice(errors=dict.fromkeys(calls, RuntimeError("the device is lost"))))
    for batch in setting.filled(5):
        assert spawn(setting.copier.wait, batch).result(PATIENCE)
        if batch.failure is None:
            spawn(setting.copier.take, batch).result(PATIENCE)
        else:
            assert "the device is lost" in str(batch.failure.error)


@pytest.mark.parametrize("calls", FAILING, ids="+".join)
def test_no_slot_is_freed_after_the_device_has_failed(calls: tuple[str, ...], spawn: Spawn) -> None:
    device = FakeDevice(errors=dict.fromkeys(calls, RuntimeError("the device is lost")))
    setting = Setting(device)
    batches = setting.filled(KEEP + 5)  # more than the ring keeps
    assert spawn(setting.copier.wait, batches[0]).result(PATIENCE)
    spawn(setting.end).result(PATIENCE)
    del batches, setting
    gc.collect()
    assert not device.broken


def test_a_stop_iteration_of_a_copy_is_no_end_of_the_epoch(
    start: Callable[..., Setting], spawn: Spawn
) -> None:
    setting = start(FakeDevice(errors={"move": StopIteration()}))
    (batch,) = setting.plan(1)
    setting.fill(batch, ["a", 1, "b", 2])  # in no slot
    assert spawn(setting.copier.wait, batch).result(PATIENCE)
    assert batch.failure is not None
    assert not isinstance(batch.failure.error, StopIteration)


def test_the_thread_is_named_after_its_loader_and_ends_with_the_epoch(
    start: Callable[..., Setting], spawn: Spawn
) -> None:
    setting = start(name="tl77")
    names = [thread.name for thread in threading.enumerate()]
    assert names.count("tl77-copier-0") == 1
    spawn(setting.end).result(PATIENCE)
    assert "tl77-copier-0" not in [thread.name for thread in threading.enumerate()]


def test_a_copier_that_is_dropped_ends_when_the_epoch_was_cancelled(spawn: Spawn) -> None:
    setting = Setting(FakeDevice(), name="tl78")
    (thread,) = [thread for thread in threading.enumerate() if thread.name == "tl78-copier-0"]
    setting.progress.cancel()  # as a finalizer does, without a lock
    setting.copier.wake()
    del setting
    spawn(thread.join).result(PATIENCE)


@settings(phases=[Phase.explicit, Phase.reuse, Phase.generate])  # a hang takes long to shrink
@given(
    seed=st.integers(0, 1 << 16),
    ahead=st.integers(1, 3),
    in_order=st.booleans(),
    done=st.permutations(range(8)),
    failed=st.frozensets(st.integers(0, 7), max_size=3),
    odd=st.frozensets(st.integers(0, 7), max_size=3),
    full=st.frozensets(st.integers(0, 7), max_size=3),
)
def test_any_copies_deliver_what_was_put(
    seed: int,
    ahead: int,
    in_order: bool,
    done: list[int],
    failed: frozenset[int],
    odd: frozenset[int],
    full: frozenset[int],
) -> None:
    device = FakeDevice(seed, full.__contains__)
    setting = Setting(device, ahead, in_order=in_order)
    batches = setting.plan(len(done))
    for number in done:
        if number in failed:
            setting.fail(batches[number])
        else:
            samples = [np.full(3, number)] * (ROWS - 1) + [np.full(3, float(number))]
            setting.fill(batches[number], samples if number in odd else None)
    try:
        for batch in _arriving(setting, list(batches)):
            number = batch.plan.sequence
            if batch.failure is not None:
                assert number in failed or isinstance(batch.failure.error, OutOfMemoryError)
                continue
            got = setting.get(batch)
            there = got[1] if type(got) is tuple else got  # it fell back, or came after one
            assert there[:, 0].tolist() == [number] * ROWS
    finally:
        setting.end()
    assert not device.broken
    assert device.most_ahead <= 1 + ahead


def _arriving(setting: Setting, waiting: list[OpenBatch]) -> Iterator[OpenBatch]:
    while waiting:
        assert setting.copier.wait_for_any(waiting, PATIENCE), "a batch never arrived"
        batch = next(batch for batch in waiting if setting.copier.has(batch))
        waiting.remove(batch)
        yield batch
