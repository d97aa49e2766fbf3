"""What the consumer keeps stays as it is; what nobody keeps is reused, and nothing is left over."""

from __future__ import annotations

import importlib.util
import threading
import weakref
from collections import deque
from queue import SimpleQueue
from threading import Event
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from support.patience import PATIENCE

from threadloader import ThreadLoader
from threadloader._order import planner

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from concurrent.futures import Future

    Spawn = Callable[..., Future[Any]]

pytestmark = pytest.mark.usefixtures("slots_for_all_leaves")

OUTPUTS = ["numpy", *(["torch"] if importlib.util.find_spec("torch") else [])]
SIZE = 24  # samples
ROWS = 3  # samples in a batch
WINDOW = 2  # batches

each_output = pytest.mark.parametrize("output", OUTPUTS)
each_kind_of_workers = pytest.mark.parametrize(
    "workers",
    [
        {"threads": 0},
        {"threads": 1},
        {"threads": 3},
        {"threads": 2, "persistent_workers": True},
    ],
    ids=["inline", "1", "3", "persistent"],
)
each_kind_of_threads = pytest.mark.parametrize(
    "workers",
    [{"threads": 2}, {"threads": 2, "persistent_workers": True}],
    ids=["", "persistent"],
)


def sample(epoch: int, index: int) -> Any:
    """Return what no other sample of any other epoch has."""
    return 10_000 * epoch + 100 * index + np.arange(6).reshape(2, 3)


def batch_of(epoch: int, number: int) -> Any:
    return np.stack([sample(epoch, ROWS * number + row) for row in range(ROWS)])


class Epochs:
    """Arrays that tell their epoch and their index; some samples of some epochs raise."""

    def __init__(self, bad: int | None = None) -> None:
        self.epoch = 0
        self.bad = bad

    def __len__(self) -> int:
        return SIZE

    def __getitem__(self, index: int) -> Any:
        if index == self.bad:
            raise LookupError(index)
        return sample(self.epoch, index)


class Late(Epochs):
    """In epoch 0 one sample waits until the test lets it go on."""

    def __init__(self, late: int) -> None:
        super().__init__()
        self.late = late
        self.entered = Event()
        self.gate = Event()

    def __getitem__(self, index: int) -> Any:
        if self.epoch == 0 and index == self.late:
            self.entered.set()
            assert self.gate.wait(PATIENCE)
        return super().__getitem__(index)


def make(dataset: Any, **arguments: Any) -> ThreadLoader[Any]:
    defaults = {"batch_size": ROWS, "prefetch": WINDOW, "threads": 2, "output": "numpy"}
    return ThreadLoader(dataset, **(defaults | arguments))


def through(loader: ThreadLoader[Any], epochs: int) -> None:
    """Run later epochs that would write over all that was lent out before: some end early."""
    for epoch in range(epochs):
        loader.dataset.epoch += 1
        loader.dataset.bad = 7 if epoch % 3 == 1 else None
        held = deque[Any](maxlen=2)
        try:
            for number, batch in enumerate(loader):
                held.append(batch)
                if epoch % 3 == 2 and number == 3:
                    break
        except LookupError:
            pass
    loader.dataset.bad = None


def join_workers() -> None:
    """Wait until no worker thread is left, of those that were told to end."""
    for thread in threading.enumerate():
        if "-worker-" in thread.name:
            thread.join(PATIENCE)
            assert not thread.is_alive()


def held(loader: ThreadLoader[Any]) -> int:
    """Return how many slots are not free once the workers have ended.

    Called by the consumer: on a free-threaded build it is the thread which made an object that
    finalises it, when it next runs.
    """
    join_workers()
    slots = loader.statistics().slots
    return slots.leased + slots.filling


def as_numpy(view: Any) -> Any:
    return np.asarray(view)


def dlpack_with_torch(batch: Any) -> Any:
    torch = pytest.importorskip("torch")
    return torch.from_dlpack(batch)


def other_library(batch: Any) -> Any:
    torch = pytest.importorskip("torch")
    return batch.numpy() if isinstance(batch, torch.Tensor) else torch.from_numpy(batch)


# Each with the same view of an array that nobody writes to.
VIEWS: dict[str, tuple[Callable[[Any], Any], Callable[[Any], Any]]] = {
    "batch": (lambda batch: batch, lambda array: array),
    "slice": (lambda batch: batch[1:], lambda array: array[1:]),
    "row": (lambda batch: batch[-1], lambda array: array[-1]),
    "row of a row": (lambda batch: batch[1][0], lambda array: array[1][0]),
    "reshaped": (lambda batch: batch.reshape(-1)[::5], lambda array: array.reshape(-1)[::5]),
    "transposed": (
        lambda batch: batch.T[0] if batch.ndim < 3 else batch[0].T,
        lambda array: array[0].T,
    ),
    "rows": (list, lambda array: array),
    "memoryview": (lambda batch: memoryview(np.asarray(batch)), lambda array: array),
    "bytes seen again": (
        lambda batch: np.frombuffer(memoryview(np.asarray(batch)), np.int64),
        lambda array: array.ravel(),
    ),
    "dlpack to numpy": (np.from_dlpack, lambda array: array),
    "dlpack to torch": (dlpack_with_torch, lambda array: array),
    "other library": (other_library, lambda array: array),
}


@each_output
@each_kind_of_workers
def test_a_list_of_all_batches_is_right(workers: dict[str, Any], output: str, spawn: Spawn) -> None:
    with make(Epochs(), output=output, **workers) as loader:
        batches = spawn(list, loader).result(PATIENCE)
        spawn(through, loader, 6).result(PATIENCE)
    assert len(batches) == SIZE // ROWS
    for number, batch in enumerate(batches):
        np.testing.assert_array_equal(batch, batch_of(0, number))


@each_output
@pytest.mark.parametrize("kind", VIEWS)
@each_kind_of_threads
def test_a_kept_view_never_changes(
    workers: dict[str, Any], kind: str, output: str, spawn: Spawn
) -> None:
    view, same_of_array = VIEWS[kind]

    def keep_and_go_on(loader: ThreadLoader[Any]) -> list[Any]:
        kept = [view(batch) for batch in loader]
        through(loader, 6)
        return kept

    with make(Epochs(), output=output, **workers) as loader:
        kept = spawn(keep_and_go_on, loader).result(PATIENCE)
        for number, each in enumerate(kept):
            np.testing.assert_array_equal(as_numpy(each), same_of_array(batch_of(0, number)))


@each_output
def test_parts_of_a_nested_batch_never_change(output: str, spawn: Spawn) -> None:
    """Each leaf alone keeps the memory of all: here one of each batch is kept."""

    class Nested(Epochs):
        def __getitem__(self, index: int) -> Any:
            array = super().__getitem__(index)
            return {"array": array, "pair": (float(index), [array[0], self.epoch])}

    def pick(number: int, batch: Any) -> Any:
        pair = batch["pair"]
        return (batch["array"], pair[0], pair[1][0], pair[1][1])[number % 4]

    def expected(number: int) -> Any:
        array = batch_of(0, number)
        indices = np.arange(ROWS * number, ROWS * (number + 1))
        return (array, indices, array[:, 0], np.zeros(ROWS))[number % 4]

    def keep_and_go_on(loader: ThreadLoader[Any]) -> list[Any]:
        kept = [pick(number, batch) for number, batch in enumerate(loader)]
        through(loader, 6)
        return kept

    kept = spawn(keep_and_go_on, make(Nested(), output=output)).result(PATIENCE)
    for number, each in enumerate(kept):
        np.testing.assert_array_equal(each, expected(number))


@each_output
@each_kind_of_threads
def test_views_that_another_thread_keeps_and_drops_never_change(
    workers: dict[str, Any], output: str, spawn: Spawn
) -> None:
    views: SimpleQueue[Any] = SimpleQueue()

    def keep_some() -> int:
        """Keep the last seven views, and look at each one again before it is dropped."""
        kept: deque[Any] = deque()
        wrong = 0
        while (entry := views.get()) is not None:
            kept.append(entry)
            del entry
            if len(kept) > 7:
                view, expected = kept.popleft()
                wrong += not np.array_equal(view, expected)
        return wrong + sum(not np.array_equal(view, expected) for view, expected in kept)

    def consume(loader: ThreadLoader[Any]) -> None:
        for epoch in range(12):
            loader.dataset.epoch = epoch
            for number, batch in enumerate(loader):
                views.put((batch[number % ROWS :], batch_of(epoch, number)[number % ROWS :]))
                if epoch % 4 == 3 and number == 4:
                    break
            loader.close()
        views.put(None)

    keeper = spawn(keep_some)
    spawn(consume, make(Epochs(), output=output, **workers)).result(PATIENCE)
    assert keeper.result(PATIENCE) == 0


def test_batches_that_were_taken_by_different_threads_never_change(spawn: Spawn) -> None:
    with make(Epochs()) as loader:
        iterator = iter(loader)
        batches = [spawn(next, iterator).result(PATIENCE) for _ in range(SIZE // ROWS)]
        del iterator
        spawn(through, loader, 6).result(PATIENCE)
    for number, batch in enumerate(batches):
        np.testing.assert_array_equal(batch, batch_of(0, number))


def test_what_the_consumer_writes_into_a_batch_reaches_no_other(spawn: Spawn) -> None:
    def scribble(loader: ThreadLoader[Any]) -> int:
        wrong = 0
        for epoch in range(3):
            loader.dataset.epoch = epoch
            for number, batch in enumerate(loader):
                wrong += not np.array_equal(batch, batch_of(epoch, number))
                batch[:] = -1
        return wrong

    assert spawn(scribble, make(Epochs())).result(PATIENCE) == 0


@each_output
def test_a_slot_is_free_once_nothing_refers_to_it(output: str, spawn: Spawn) -> None:
    def let_go_bit_by_bit(loader: ThreadLoader[Any]) -> list[int]:
        batch = next(iter(loader))
        row = batch[0]
        view = memoryview(np.asarray(row))
        leased = [loader.statistics().slots.leased]
        del batch
        leased.append(loader.statistics().slots.leased)
        del row
        leased.append(loader.statistics().slots.leased)
        del view
        leased.append(loader.statistics().slots.leased)
        return leased

    loader = make(Epochs(), output=output)
    assert spawn(let_go_bit_by_bit, loader).result(PATIENCE) == [1, 1, 1, 0]


def test_a_slot_that_another_thread_let_go_is_free(spawn: Spawn) -> None:
    """On a free-threaded build it is its maker that finalises it, as soon as it runs again."""

    def hand_over(loader: ThreadLoader[Any]) -> list[int]:
        hands = [next(iter(loader))]
        leased = [loader.statistics().slots.leased]
        spawn(hands.clear).result(PATIENCE)
        leased.append(loader.statistics().slots.leased)
        return leased

    assert spawn(hand_over, make(Epochs())).result(PATIENCE) == [1, 0]


def test_an_epoch_that_is_over_holds_no_slot(spawn: Spawn) -> None:
    def run(loader: ThreadLoader[Any]) -> Any:
        iterator = iter(loader)
        deque(iterator, maxlen=0)
        return loader.statistics().slots

    with make(Epochs(), persistent_workers=True) as loader:
        slots = spawn(run, loader).result(PATIENCE)
    assert (slots.leased, slots.filling) == (0, 0)
    assert slots.free == slots.made


def test_an_idle_worker_keeps_nothing_of_its_last_batch(spawn: Spawn) -> None:
    class Index:
        """An index that can be referred to weakly."""

    class Constant:
        def __getitem__(self, index: Index) -> int:
            return 0

    gone = Event()

    def one_index() -> Iterator[Index]:
        index = Index()
        weakref.finalize(index, gone.set)
        yield index

    with make(Constant(), sampler=one_index(), threads=1, persistent_workers=True) as loader:
        spawn(list, loader).result(PATIENCE)
        # In short waits: on a free-threaded build it may be this thread that has to finalise it.
        assert any(gone.wait(PATIENCE / 1000) for _ in range(1000))


def slots_of(loader: ThreadLoader[Any]) -> int:
    """Return how many slots there are."""
    slots = loader.statistics().slots
    return slots.free + slots.filling + slots.leased


def plain_loops(loader: ThreadLoader[Any], epochs: int) -> list[int]:
    """Return how many slots there are at each batch of a plain for loop."""
    made = []
    for _ in range(epochs):
        for batch in loader:
            assert len(batch)
            made.append(slots_of(loader))
    return made


@each_output
@each_kind_of_workers
@pytest.mark.parametrize("window", [1, 2, 4])
def test_a_plain_loop_needs_at_most_two_slots_more_than_the_window(
    window: int, workers: dict[str, Any], output: str, spawn: Spawn
) -> None:
    # Two threads that are both late may hold no more than what is planned: not one more.
    with make(Epochs(), prefetch=window, output=output, **workers) as loader:
        made = spawn(plain_loops, loader, 5).result(PATIENCE)
    assert max(made) <= window + 2


def loops_with_errors(loader: ThreadLoader[Any], epochs: int) -> list[int]:
    """Like `plain_loops`, but one batch of each epoch is an error, and the loop goes on."""
    made = []
    for _ in range(epochs):
        iterator = iter(loader)
        for _ in range(SIZE // ROWS):
            try:
                batch = next(iterator)
            except LookupError:
                continue
            assert len(batch)
        assert next(iterator, None) is None
        made.append(slots_of(loader))
    return made


@each_kind_of_workers
def test_an_error_in_each_epoch_takes_no_slot_away(workers: dict[str, Any], spawn: Spawn) -> None:
    with make(Epochs(bad=10), **workers) as loader:
        first, *later = spawn(loops_with_errors, loader, 5).result(PATIENCE)
    assert max(first, *later) <= WINDOW + 2 + max(0, loader.num_workers - 1)


def loops_with_breaks(loader: ThreadLoader[Any], epochs: int) -> int:
    for _ in range(epochs):
        for number, batch in enumerate(loader):
            assert len(batch)
            if number == 3:
                break
        if not loader.persistent_workers:
            join_workers()  # a sample that is running at the break keeps its batch until it ends
    return slots_of(loader)


@each_kind_of_workers
def test_a_break_in_each_epoch_takes_no_slot_away(workers: dict[str, Any], spawn: Spawn) -> None:
    with make(Epochs(), **workers) as loader:
        made = spawn(loops_with_breaks, loader, 20).result(PATIENCE)
        running = loader.num_workers - 1 if loader.persistent_workers else 0
    assert made <= WINDOW + 2 + running


def abandon(loader: ThreadLoader[Any]) -> None:
    """Iterate to the second batch, and drop all of it."""
    iterator = iter(loader)
    next(iterator)
    next(iterator)


@pytest.mark.parametrize("threads", [1, 3])
def test_dropping_an_iterator_half_way_ends_its_threads_and_frees_its_slots(
    threads: int, spawn: Spawn
) -> None:
    def abandon_it(loader: ThreadLoader[Any]) -> int:
        abandon(loader)
        return held(loader)

    assert spawn(abandon_it, make(Epochs(), threads=threads)).result(PATIENCE) == 0


def test_dropping_a_loader_ends_its_persistent_workers(spawn: Spawn) -> None:
    loader = make(Epochs(), persistent_workers=True)
    spawn(plain_loops, loader, 2).result(PATIENCE)
    assert any("-worker-" in thread.name for thread in threading.enumerate())
    spawn(abandon, loader).result(PATIENCE)
    gone = weakref.ref(loader)
    del loader
    join_workers()
    assert gone() is None


@each_kind_of_workers
def test_an_iterator_outlives_its_loader(workers: dict[str, Any], spawn: Spawn) -> None:
    batches = spawn(lambda: list(make(Epochs(), **workers))).result(PATIENCE)
    for number, batch in enumerate(batches):
        np.testing.assert_array_equal(batch, batch_of(0, number))
    assert len(batches) == SIZE // ROWS


def test_a_batch_outlives_its_loader(spawn: Spawn) -> None:
    def leave_the_loader() -> Any:
        batch = next(iter(make(Epochs())))
        join_workers()
        return batch

    batch = spawn(leave_the_loader).result(PATIENCE)
    np.testing.assert_array_equal(batch, batch_of(0, 0))


@each_kind_of_workers
def test_two_iterators_of_one_loader_are_independent(workers: dict[str, Any], spawn: Spawn) -> None:
    def interleave(loader: ThreadLoader[Any]) -> tuple[list[Any], list[Any]]:
        ahead, behind = iter(loader), iter(loader)
        first = [next(ahead) for _ in range(3)]
        second = [next(behind)]
        return first + list(ahead), second + list(behind)

    with make(Epochs(), **workers) as loader:
        for batches in spawn(interleave, loader).result(PATIENCE):
            assert len(batches) == SIZE // ROWS
            for number, batch in enumerate(batches):
                np.testing.assert_array_equal(batch, batch_of(0, number))


@each_kind_of_workers
def test_dropping_or_closing_one_iterator_leaves_the_other(
    workers: dict[str, Any], spawn: Spawn
) -> None:
    def survive(loader: ThreadLoader[Any]) -> list[Any]:
        survivor, dropped, closed = (iter(loader) for _ in range(3))
        batches = [next(survivor)]
        next(dropped)
        next(closed)
        del dropped
        closed.close()
        return batches + list(survivor)

    with make(Epochs(), **workers) as loader:
        batches = spawn(survive, loader).result(PATIENCE)
    for number, batch in enumerate(batches):
        np.testing.assert_array_equal(batch, batch_of(0, number))
    assert len(batches) == SIZE // ROWS


@each_kind_of_threads
def test_threads_that_iterate_one_loader_at_once_do_not_disturb_each_other(
    workers: dict[str, Any], spawn: Spawn
) -> None:
    with make(Epochs(), **workers) as loader:
        spawn(plain_loops, loader, 1).result(PATIENCE)  # which starts persistent workers
        consumers = [spawn(list, loader) for _ in range(4)]
        for batches in (consumer.result(PATIENCE) for consumer in consumers):
            assert len(batches) == SIZE // ROWS
            for number, batch in enumerate(batches):
                np.testing.assert_array_equal(batch, batch_of(0, number))


@pytest.fixture
def one_row_tickets(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let each row be a ticket, so that rows before a late one are written."""
    monkeypatch.setattr(planner, "TICKET_SECONDS", 0.0)


@pytest.mark.usefixtures("one_row_tickets")
@each_output
@each_kind_of_threads
def test_a_late_sample_of_an_abandoned_batch_is_written_into_no_batch_of_a_later_epoch(
    workers: dict[str, Any], output: str, spawn: Spawn
) -> None:
    dataset = Late(late=ROWS + 1)  # in the second batch, whose first row has taken a slot

    def abandon_while_it_runs(loader: ThreadLoader[Any]) -> list[Any]:
        iterator = iter(loader)
        next(iterator)
        assert dataset.entered.wait(PATIENCE)
        del iterator
        dataset.epoch = 1
        kept = list(loader)
        dataset.gate.set()
        loader.close()
        join_workers()  # also those of the iterator that was dropped
        return kept

    # A dataset that is not copied, so that persistent workers see the epoch, too.
    loader = make(dataset, output=output, prefetch=1, dataset_copy="shared", **workers)
    kept = spawn(abandon_while_it_runs, loader).result(PATIENCE)
    for number, batch in enumerate(kept):
        np.testing.assert_array_equal(batch, batch_of(1, number))


@pytest.mark.usefixtures("one_row_tickets")
def test_a_late_sample_keeps_its_slot_until_it_ends(spawn: Spawn) -> None:
    dataset = Late(late=ROWS + 1)

    def abandon_while_it_runs(loader: ThreadLoader[Any]) -> tuple[int, int]:
        iterator = iter(loader)
        next(iterator)
        assert dataset.entered.wait(PATIENCE)
        del iterator
        filling = loader.statistics().slots.filling
        dataset.gate.set()
        return filling, held(loader)

    assert spawn(abandon_while_it_runs, make(dataset, prefetch=1, threads=1)).result(PATIENCE) == (
        1,
        0,
    )


# Kept exceptions


class Broken(Epochs):
    def __init__(self) -> None:
        super().__init__(bad=ROWS + 1)


class BrokenBatches(Broken):
    def __getitems__(self, indices: list[int]) -> list[Any]:
        return [self[index] for index in indices]


class Ragged(Epochs):
    def __getitem__(self, index: int) -> Any:
        return sample(0, index)[: 1 if index == ROWS + 1 else 2]


class Stopping(Epochs):
    def __getitem__(self, index: int) -> Any:
        if index == ROWS + 1:
            raise StopIteration
        return sample(0, index)


def collate_or_fail(samples: list[Any]) -> Any:
    if samples[0][0, 0] == 100 * ROWS:
        raise LookupError
    return np.stack(samples)


class BrokenSampler:
    def __iter__(self) -> Iterator[list[int]]:
        yield list(range(ROWS))
        raise LookupError


BROKEN: dict[str, Callable[..., ThreadLoader[Any]]] = {
    "getitem": lambda **arguments: make(Broken(), **arguments),
    "getitems": lambda **arguments: make(BrokenBatches(), **arguments),
    "StopIteration": lambda **arguments: make(Stopping(), **arguments),
    "default_collate": lambda **arguments: make(Ragged(), **arguments),
    "collate_fn": lambda **arguments: make(Epochs(), collate_fn=collate_or_fail, **arguments),
    "sampler": lambda **arguments: make(
        Epochs(), batch_size=1, batch_sampler=BrokenSampler(), **arguments
    ),
}


def first_error(loader: ThreadLoader[Any]) -> tuple[Exception, weakref.ref[Any]]:
    """Iterate to the first error; return it, and what is left of the iterator."""
    iterator = iter(loader)
    gone = weakref.ref(iterator)
    try:
        deque(iterator, maxlen=0)
    except Exception as error:  # noqa: BLE001  # what is kept
        del iterator
        return error, gone
    raise AssertionError("no error")


@each_output
@each_kind_of_workers
@pytest.mark.parametrize("broken", BROKEN)
def test_a_kept_exception_keeps_no_slot_and_no_iterator(
    broken: str, workers: dict[str, Any], output: str, spawn: Spawn
) -> None:
    def keep_one(loader: ThreadLoader[Any]) -> tuple[Any, Any, int]:
        error, gone = first_error(loader)
        iterator = gone()
        loader.close()
        return error.__traceback__, iterator, held(loader)

    loader = BROKEN[broken](output=output, **workers)
    traceback, iterator, slots = spawn(keep_one, loader).result(PATIENCE)
    assert traceback is not None
    assert iterator is None
    assert slots == 0


@pytest.mark.parametrize("broken", BROKEN)
def test_a_kept_exception_keeps_no_thread(broken: str, spawn: Spawn) -> None:
    def keep_one(loader: ThreadLoader[Any]) -> Exception:
        error, _ = first_error(loader)
        join_workers()
        return error

    with BROKEN[broken]() as loader:
        assert spawn(keep_one, loader).result(2 * PATIENCE).__traceback__ is not None


@each_kind_of_workers
def test_exceptions_kept_from_many_epochs_keep_no_slot(
    workers: dict[str, Any], spawn: Spawn
) -> None:
    def keep_many(loader: ThreadLoader[Any]) -> tuple[int, int]:
        kept = [first_error(loader)[0] for _ in range(20)]
        loader.close()
        return len(kept), held(loader)

    assert spawn(keep_many, make(Broken(), **workers)).result(PATIENCE) == (20, 0)
