"""Where the user chose no number of threads, the calling thread makes batches that cost little."""

# ruff: noqa: SLF001  # how an epoch works has no public name

from __future__ import annotations

import asyncio
import io
import math
import random
import threading
import time
from typing import TYPE_CHECKING, Any

import pytest
from support.patience import PATIENCE
from support.slower_threads import let_no_batch_be_cheap

from threadloader import ThreadLoader, get_worker_info
from threadloader._epoch import inline as inline_module
from threadloader._epoch.inline import Inline
from threadloader._threads.advice import Range
from threadloader._threads.concurrency import Concurrency

if TYPE_CHECKING:
    from support.patience import Spawn


class Samples:
    """Samples that tell which thread made them."""

    def __init__(self, length: int = 4096, slow_from: int = 1 << 30) -> None:
        self.length, self.slow_from = length, slow_from

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> tuple[int, bool]:
        if index >= self.slow_from:
            time.sleep(0.002)
        return index, threading.current_thread() is threading.main_thread()


@pytest.fixture
def cheap(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let all batches count as cheap, also on a busy machine."""
    for module in ("_epoch.inline", "_epoch.in_flight", "_order.tickets"):
        monkeypatch.setattr(f"threadloader.{module}.INLINE_SECONDS", PATIENCE)
    monkeypatch.setattr("threadloader._epoch.in_flight.ONE_TICKET_SECONDS", PATIENCE)


@pytest.fixture
def never_cheap(monkeypatch: pytest.MonkeyPatch) -> None:
    let_no_batch_be_cheap(monkeypatch)
    # On a busy machine threads may look slower than the calling thread.
    monkeypatch.setattr("threadloader._threads.inline_choice.SOON_SECONDS", math.inf)


def threads_of(loader: ThreadLoader[Any]) -> set[str]:
    prefix = f"{loader._name}-"
    return {each.name for each in threading.enumerate() if each.name.startswith(prefix)}


def here(batch: Any) -> list[bool]:
    return [made_here for _, made_here in batch]


def indices(batches: list[Any]) -> list[int]:
    return [index for batch in batches for index, _ in batch]


@pytest.mark.usefixtures("cheap")
def test_no_thread_is_started_for_cheap_batches() -> None:
    loader: ThreadLoader[Any] = ThreadLoader(Samples(), 16, collate_fn=list)
    batches = []
    for batch in loader:
        assert not threads_of(loader)
        assert all(here(batch))
        batches.append(batch)
    assert indices(batches) == list(range(4096))


@pytest.mark.parametrize("slow_from", [0, 1, 15, 16, 100])
def test_threads_make_the_rest_once_samples_take_long(
    slow_from: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    # On a busy machine threads may look slower than the calling thread.
    monkeypatch.setattr("threadloader._threads.inline_choice.SOON_SECONDS", math.inf)
    loader: ThreadLoader[Any] = ThreadLoader(Samples(300, slow_from), 16, collate_fn=list)
    batches = list(loader)
    assert indices(batches) == list(range(300))
    assert not any(here(batches[-1]))


@pytest.mark.usefixtures("never_cheap")
def test_a_first_batch_that_is_begun_here_is_finished_by_threads() -> None:
    loader: ThreadLoader[Any] = ThreadLoader(Samples(64), 16, collate_fn=list)
    first, *others = loader
    assert here(first)[0]
    assert not any(here(first)[3:])
    assert not any(made_here for batch in others for made_here in here(batch))
    assert indices([first, *others]) == list(range(64))


@pytest.mark.usefixtures("never_cheap")
def test_later_epochs_begin_with_threads() -> None:
    with ThreadLoader(Samples(64, 0), 16, collate_fn=list) as loader:
        list(loader)
        assert not any(made_here for batch in loader for made_here in here(batch))


class Collated:
    """Collates slowly, and tells which thread has."""

    def __call__(self, _samples: list[Any]) -> bool:
        time.sleep(0.005)
        return threading.current_thread() is threading.main_thread()


def test_cheap_samples_that_are_collated_slowly_are_left_to_threads(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # On a busy machine the first samples may take long, and threads look slower than they are.
    monkeypatch.setattr("threadloader._epoch.in_flight.INLINE_SECONDS", PATIENCE)
    monkeypatch.setattr("threadloader._threads.inline_choice.SOON_SECONDS", math.inf)
    loader: ThreadLoader[Any] = ThreadLoader(Samples(256), 4, collate_fn=Collated())
    first, *_, last = loader
    assert first
    assert not last
    assert not any(loader)  # it is known now


@pytest.mark.usefixtures("cheap")
def test_what_the_calling_thread_does_is_not_measured_as_threads_work() -> None:
    loader: ThreadLoader[Any] = ThreadLoader(Samples(640), 16, collate_fn=list)
    loader._concurrency._to_ignore = 0
    list(loader)
    assert loader._concurrency._timing.jobs == 0


class Dear(Samples):
    """One sample takes long."""

    def __getitem__(self, index: int) -> tuple[int, bool]:
        time.sleep(0.02)
        return super().__getitem__(index)


class DearBatches(Dear):
    """A whole batch takes long."""

    def __getitems__(self, indices: list[int]) -> list[tuple[int, bool]]:
        time.sleep(0.02)
        return [Samples.__getitem__(self, index) for index in indices]


@pytest.mark.parametrize(
    ("dataset", "batch_size"), [(Dear, 1), (Dear, None), (DearBatches, 16)], ids=str
)
def test_the_second_batch_is_made_ahead_if_the_first_was_dear(
    dataset: type[Samples], batch_size: int | None
) -> None:
    given: dict[str, Any] = {} if batch_size is None else {"collate_fn": list}
    loader: ThreadLoader[Any] = ThreadLoader(dataset(64), batch_size, output="numpy", **given)
    first, second, *_ = loader
    if batch_size is None:
        first, second = [first], [second]
    assert all(here(first))
    assert not any(here(second))


class DrawsIndices:
    """A sampler that draws from the random state that the training loop draws from, too."""

    def __iter__(self) -> Any:
        return iter(lambda: random.randrange(64), None)


@pytest.mark.parametrize("slow_from", [0, 1 << 30], ids=["slow", "cheap"])
def test_a_sampler_of_the_users_is_drawn_as_without_threads(slow_from: int) -> None:
    def load(**given: Any) -> list[Any]:
        random.seed(5)
        dataset = Samples(64, slow_from)
        with ThreadLoader(dataset, 4, sampler=DrawsIndices(), collate_fn=list, **given) as loader:
            batches = iter(loader)
            return [(indices([next(batches)]), random.random()) for _ in range(40)]

    assert load() == load(threads=0)


class AsksItself(Samples):
    """A sample asks for the next batch of the iterator that loads it."""

    iterator: Any = None

    def __getitem__(self, index: int) -> Any:
        if index == 3:
            next(type(self).iterator)
        return super().__getitem__(index)


@pytest.mark.usefixtures("cheap")
def test_a_sample_that_asks_its_own_iterator_is_an_error_and_no_hang(spawn: Spawn) -> None:
    def load() -> None:
        AsksItself.iterator = iter(ThreadLoader(AsksItself(64), 16, collate_fn=list))
        with pytest.raises(RuntimeError, match="can't ask for the next batch"):
            next(AsksItself.iterator)

    try:
        spawn(load).result(PATIENCE)
    finally:
        AsksItself.iterator = None


class RunsALoop(Samples):
    """Samples that run an event loop of their own."""

    def __getitem__(self, index: int) -> Any:
        async def get() -> Any:
            return Samples.__getitem__(self, index)

        return asyncio.run(get())


@pytest.mark.usefixtures("cheap")
@pytest.mark.parametrize("batches_before", [0, 2])
def test_threads_make_the_batches_that_are_awaited_in_an_event_loop(batches_before: int) -> None:
    iterator = iter(ThreadLoader(RunsALoop(48), 4, collate_fn=list))
    batches = [next(iterator) for _ in range(batches_before)]
    assert all(all(here(batch)) for batch in batches)

    async def rest() -> list[Any]:
        return list(iterator)

    others = asyncio.run(rest())
    assert not any(any(here(batch)) for batch in others)
    assert indices([*batches, *others]) == list(range(48))


@pytest.mark.usefixtures("cheap")
def test_what_a_sample_does_to_gradients_stays_in_it() -> None:
    torch = pytest.importorskip("torch")

    class SwitchesOff(Samples):
        def __getitem__(self, index: int) -> Any:
            torch.set_grad_enabled(False)
            return super().__getitem__(index)

    for _ in ThreadLoader(SwitchesOff(64), 16, collate_fn=list):
        assert torch.is_grad_enabled()


class Told(Samples):
    """Samples that tell who made them, on the user's own object."""

    user: Any = None

    def __getitem__(self, index: int) -> Any:
        info = get_worker_info()
        assert info is not None
        assert info.dataset is self is type(self).user
        return index, info.id


@pytest.mark.usefixtures("cheap")
def test_the_calling_thread_is_a_worker_with_the_users_own_dataset() -> None:
    Told.user = dataset = Told(64)
    loader: ThreadLoader[Any] = ThreadLoader(dataset, 16, collate_fn=list)
    assert [worker for batch in loader for _, worker in batch] == [0] * 64
    assert get_worker_info() is None


class Connected(Samples):
    """Samples that use what only the thread may use that has made it."""

    thread: int | None = None
    handle: Any = None

    def __getitem__(self, index: int) -> Any:
        if self.thread is None:
            self.thread, self.handle = threading.get_ident(), io.BytesIO()
        assert self.thread == threading.get_ident()
        return super().__getitem__(index)


@pytest.mark.usefixtures("never_cheap")
def test_threads_have_copies_that_the_calling_thread_has_not_used() -> None:
    """A connection of sqlite3, say, may be used by the thread that has opened it, and no other."""
    loader: ThreadLoader[Any] = ThreadLoader(Connected(256), 16, collate_fn=list)
    first, *others = loader
    assert here(first)[0]
    assert not here(others[-1])[-1]
    assert indices([first, *others]) == list(range(256))


@pytest.mark.usefixtures("cheap")
@pytest.mark.parametrize(
    "given", [{"persistent_workers": True}, {"timeout": PATIENCE}, {"threads": 1}], ids=str
)
def test_threads_make_all_batches_where_they_must(given: dict[str, Any]) -> None:
    with ThreadLoader(Samples(64), 16, collate_fn=list, **given) as loader:
        assert not any(made_here for batch in loader for made_here in here(batch))


class Fails(Samples):
    """A sample that fails."""

    def __getitem__(self, index: int) -> Any:
        if index == 21:
            msg = "sample 21"
            raise ValueError(msg)
        return super().__getitem__(index)


@pytest.mark.parametrize("mode", ["cheap", "never_cheap"])
def test_an_error_comes_in_the_place_of_its_batch(
    mode: str, request: pytest.FixtureRequest
) -> None:
    request.getfixturevalue(mode)
    iterator = iter(ThreadLoader(Fails(48), 16, collate_fn=list))
    assert indices([next(iterator)]) == list(range(16))
    with pytest.raises(ValueError, match="sample 21"):
        next(iterator)
    assert indices([next(iterator)]) == list(range(32, 48))
    with pytest.raises(StopIteration):
        next(iterator)


@pytest.mark.parametrize("mode", ["cheap", "never_cheap"])
def test_a_state_is_the_same_wherever_batches_are_made(
    mode: str, request: pytest.FixtureRequest
) -> None:
    request.getfixturevalue(mode)

    def make(**given: Any) -> ThreadLoader[Any]:
        return ThreadLoader(Samples(64), 4, True, seed=1, collate_fn=list, **given)

    first, second = make(), make(threads=1)
    iterators = iter(first), iter(second)
    for _ in range(5):
        assert indices([next(iterators[0])]) == indices([next(iterators[1])])
    assert first.state_dict() == second.state_dict()
    resumed = make()
    resumed.load_state_dict(first.state_dict())
    rest = indices(list(iterators[1]))
    assert indices(list(resumed)) == rest
    first.close()
    second.close()


@pytest.mark.usefixtures("cheap")
def test_closing_ends_an_epoch_that_is_made_here() -> None:
    loader: ThreadLoader[Any] = ThreadLoader(Samples(64), 16, collate_fn=list)
    iterator = iter(loader)
    next(iterator)
    loader.close()
    with pytest.raises(RuntimeError, match="closed"):
        next(iterator)
    assert len(list(loader)) == 4


class Clock:
    """A clock that is set by hand."""

    now = 1.0

    def __call__(self) -> float:
        return self.now


def decisions(
    monkeypatch: pytest.MonkeyPatch, batch: float, step: float, *, has_gil: bool = True
) -> list[bool]:
    """Return whether each of twenty batches of 16 rows would be followed by one made here."""
    clock = Clock()
    monkeypatch.setattr(inline_module, "perf_counter", clock)
    concurrency = Concurrency()
    concurrency.serve(Range(2, 256, has_gil))
    inline = Inline(concurrency, begins=True)
    inline.batch_returned()
    decided = []
    for number in range(20):
        clock.now += step
        inline.batch_begins()
        clock.now += batch if number != 7 else 100 * batch  # the garbage collector, say
        inline.batch_ended()
        decided.append(inline.goes_on(16))
    return decided


MICRO = 1e-6


def test_cheap_batches_are_made_here_whatever_the_consumer_does(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert all(decisions(monkeypatch, 20 * MICRO, 1.0))


def test_a_consumer_that_only_waits_makes_short_samples_itself(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert all(decisions(monkeypatch, 800 * MICRO, 5 * MICRO))


def test_beside_a_consumer_that_works_a_thread_makes_them(monkeypatch: pytest.MonkeyPatch) -> None:
    assert not decisions(monkeypatch, 800 * MICRO, 2000 * MICRO)[-1]


def test_without_a_gil_threads_make_what_is_not_cheap(monkeypatch: pytest.MonkeyPatch) -> None:
    assert not decisions(monkeypatch, 800 * MICRO, 5 * MICRO, has_gil=False)[1]


def test_long_samples_are_made_by_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    assert not decisions(monkeypatch, 0.01, 5 * MICRO)[1]
