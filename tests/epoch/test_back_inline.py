"""The calling thread makes batches again where threads are slower, and all of a short epoch."""

# ruff: noqa: SLF001  # how an epoch works has no public name

from __future__ import annotations

import io
import os
import random
import threading
import time
from contextlib import suppress
from typing import Any

import pytest
from support.patience import PATIENCE
from support.slower_threads import (
    let_no_batch_be_cheap,
    let_threads_be_far_slower,
    takes_cpu,
)

from threadloader import ThreadLoader, get_worker_info
from threadloader._threads.inline_choice import InlineChoice


class Samples:
    """Samples that tell whether the main thread made them."""

    def __init__(self, length: int = 4096) -> None:
        self.length = length

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> tuple[int, bool]:
        return index, threading.current_thread() is threading.main_thread()


@pytest.fixture
def never_cheap(monkeypatch: pytest.MonkeyPatch) -> None:
    let_no_batch_be_cheap(monkeypatch)


@pytest.fixture
def far_slower(monkeypatch: pytest.MonkeyPatch) -> None:
    let_threads_be_far_slower(monkeypatch)


@pytest.fixture
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let no batch count as cheap, but all epochs of a known length as short."""
    for module in ("_epoch.inline", "_epoch.in_flight", "_order.tickets"):
        monkeypatch.setattr(f"threadloader.{module}.INLINE_SECONDS", 0.0)
    for module in ("_epoch.inline", "_order.tickets"):
        monkeypatch.setattr(f"threadloader.{module}.START_SECONDS", PATIENCE)
    monkeypatch.setattr("threadloader._epoch.in_flight.ONE_TICKET_SECONDS", PATIENCE)
    monkeypatch.setattr("threadloader._threads.concurrency.SHORT", 0.0)


def threads_of(loader: ThreadLoader[Any]) -> set[str]:
    prefix = f"{loader._name}-"
    return {each.name for each in threading.enumerate() if each.name.startswith(prefix)}


def here(batch: Any) -> list[bool]:
    return [made_here for _, made_here in batch]


def indices(batches: list[Any]) -> list[int]:
    return [index for batch in batches for index, _ in batch]


class DearElsewhere(Samples):
    """Samples that take far longer in any thread but the main one."""

    dear = True

    def __getitem__(self, index: int) -> tuple[int, bool]:
        made = super().__getitem__(index)
        if not made[1] and type(self).dear:
            time.sleep(0.002)
        return made


@pytest.mark.usefixtures("never_cheap", "far_slower")
def test_the_calling_thread_goes_on_where_threads_are_far_slower() -> None:
    loader: ThreadLoader[Any] = ThreadLoader(DearElsewhere(4096), 16, collate_fn=list)
    takes_cpu(loader)
    batches = list(loader)
    made_here = [all(here(batch)) for batch in batches]
    assert False in made_here
    assert all(made_here[made_here.index(False) :][64:])
    assert indices(batches) == list(range(4096))


@pytest.mark.usefixtures("never_cheap", "far_slower")
def test_later_epochs_start_no_thread_where_threads_were_far_slower() -> None:
    loader: ThreadLoader[Any] = ThreadLoader(DearElsewhere(4096), 16, collate_fn=list)
    takes_cpu(loader)
    list(loader)
    loader.close()
    for _ in range(3):
        for batch in loader:
            assert all(here(batch))
            assert not threads_of(loader)


@pytest.mark.usefixtures("never_cheap", "far_slower")
def test_threads_are_tried_again_in_the_middle_of_an_epoch() -> None:
    DearElsewhere.dear = True
    loader: ThreadLoader[Any] = ThreadLoader(DearElsewhere(1 << 14), 16, collate_fn=list)
    takes_cpu(loader)
    batches, stages = [], [True]
    for batch in loader:
        batches.append(batch)
        if all(here(batch)) is not stages[-1]:
            stages.append(not stages[-1])
        if stages == [True, False, True]:
            loader._concurrency.inline_choice._due = 0.0
    assert stages[:4] == [True, False, True, False]
    assert indices(batches) == list(range(1 << 14))


@pytest.mark.usefixtures("never_cheap")
def test_the_calling_thread_goes_on_where_it_would_only_wait() -> None:
    loader: ThreadLoader[Any] = ThreadLoader(Samples(1 << 14), 16, collate_fn=list)
    batches, told = [], 0
    for batch in loader:
        batches.append(batch)
        if not any(here(batch)):
            loader._concurrency.inline_choice.__init__()  # it would compare
            loader._concurrency.inline_choice.seconds = PATIENCE
            # Each time: a slow first batch of threads is a reason of its own, which this undoes.
            loader._concurrency.consumer_only_waits = True
            told = told or len(batches)
    assert told
    assert any(all(here(batch)) for batch in batches[told:])
    assert indices(batches) == list(range(1 << 14))


class ConnectedDearElsewhere(DearElsewhere):
    """The same, with what only the thread may use that has made it."""

    thread: int | None = None
    handle: Any = None

    def __getitem__(self, index: int) -> Any:
        if self.thread is None:
            self.thread, self.handle = threading.get_ident(), io.BytesIO()
        assert self.thread == threading.get_ident()
        info = get_worker_info()
        assert info is not None
        assert info.dataset is self
        return super().__getitem__(index)


@pytest.mark.usefixtures("never_cheap", "far_slower")
def test_a_thread_has_its_own_copy_again_whoever_made_batches_meanwhile() -> None:
    dataset = ConnectedDearElsewhere(1 << 13)
    loader: ThreadLoader[Any] = ThreadLoader(dataset, 16, collate_fn=list)
    takes_cpu(loader)
    batches, stages = [], [True]
    for batch in loader:
        batches.append(batch)
        if all(here(batch)) is not stages[-1]:
            stages.append(not stages[-1])
        if stages == [True, False, True]:
            loader._concurrency.inline_choice._due = 0.0
    assert stages[:4] == [True, False, True, False]
    assert indices(batches) == list(range(1 << 13))


class Draws(DearElsewhere):
    """Samples that draw random numbers."""

    def __getitem__(self, index: int) -> Any:
        return super().__getitem__(index), random.random()


@pytest.mark.usefixtures("never_cheap", "far_slower")
def test_samples_draw_the_same_wherever_they_are_made() -> None:
    def load(**given: Any) -> list[Any]:
        dataset = Draws(1024)
        with ThreadLoader(dataset, 16, True, seed=3, collate_fn=list, **given) as loader:
            if not given:
                takes_cpu(loader)
            return [(index, drawn) for batch in loader for (index, _), drawn in batch]

    assert load() == load(threads=2)


@pytest.mark.parametrize("fails", ["sample", "sampler"])
@pytest.mark.usefixtures("never_cheap", "far_slower")
def test_an_error_comes_in_its_place_after_threads_were_left(fails: str) -> None:
    class FailsOnce(DearElsewhere):
        def __getitem__(self, index: int) -> Any:
            if index == 3333:
                raise ValueError(fails)
            return super().__getitem__(index)

    loader: ThreadLoader[Any] = ThreadLoader(FailsOnce(4096), 16, collate_fn=list)
    takes_cpu(loader)
    iterator = iter(loader)
    batches = [next(iterator) for _ in range(3333 // 16)]
    with pytest.raises(ValueError, match=fails):
        next(iterator)
    batches += iterator
    assert all(here(batches[-1]))
    lost = range(3333 // 16 * 16, 3333 // 16 * 16 + 16)
    assert indices(batches) == [index for index in range(4096) if index not in lost]


@pytest.mark.usefixtures("short")
@pytest.mark.parametrize(("length", "batch_size"), [(3, 2), (3, 3), (64, 16)])
def test_an_epoch_that_ends_soon_starts_no_thread(
    length: int, batch_size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[threading.Thread] = []
    monkeypatch.setattr(
        "threadloader._threads.pool.start_all", lambda each, _: started.extend(each)
    )
    loader: ThreadLoader[Any] = ThreadLoader(Samples(length), batch_size, collate_fn=list)
    for _ in range(5):
        assert indices(list(loader)) == list(range(length))
    assert not started


@pytest.mark.usefixtures("short")
def test_an_epoch_of_unknown_length_does_not_count_as_short() -> None:
    class Endless:
        def __iter__(self) -> Any:
            return iter(lambda: 1, None)

    loader: ThreadLoader[Any] = ThreadLoader(Samples(4), 2, sampler=Endless(), collate_fn=list)
    batches = iter(loader)
    assert not all(made_here for _ in range(64) for made_here in here(next(batches)))
    loader.close()


# Several loaders, and forks


class ThreadsOnly(InlineChoice):
    """Finds threads never slower."""

    def delivered(self, samples: int, waited: float, *, settled: bool) -> bool:  # noqa: ARG002
        return False


def two_loaders() -> tuple[ThreadLoader[Any], ThreadLoader[Any]]:
    """Return a loader that threads are slower for, and one that they are not."""
    left: ThreadLoader[Any] = ThreadLoader(DearElsewhere(4096), 16, collate_fn=list)
    takes_cpu(left)
    kept: ThreadLoader[Any] = ThreadLoader(Samples(4096), 16, collate_fn=list)
    kept._concurrency.inline_choice = ThreadsOnly()
    return left, kept


def preferred(*loaders: ThreadLoader[Any]) -> list[bool]:
    return [loader._concurrency.inline_choice.preferred for loader in loaders]


@pytest.mark.usefixtures("never_cheap", "far_slower")
def test_two_loaders_side_by_side_choose_each_for_itself() -> None:
    left, kept = two_loaders()
    of_left, of_kept = [], []
    for one, other in zip(left, kept, strict=True):
        of_left.append(one)
        of_kept.append(other)
    assert preferred(left, kept) == [True, False]
    assert all(all(here(batch)) for batch in of_left[-64:])
    assert not any(all(here(batch)) for batch in of_kept[-64:])
    assert indices(of_left) == indices(of_kept) == list(range(4096))


@pytest.mark.usefixtures("never_cheap", "far_slower")
def test_training_and_validation_in_turn_keep_what_was_found_for_each() -> None:
    training, validation = two_loaders()
    until = time.monotonic() + PATIENCE
    while preferred(training) == [False]:  # on a busy machine it may not be found at once
        list(training)
        assert time.monotonic() < until
    for _ in range(3):
        of_validation = list(validation)
        assert not any(all(here(batch)) for batch in of_validation[-64:])
        of_training = list(training)
        assert all(all(here(batch)) for batch in of_training)
        assert not threads_of(training)
        assert preferred(training, validation) == [True, False]
        assert indices(of_training) == indices(of_validation) == list(range(4096))


@pytest.mark.skipif(not hasattr(os, "fork"), reason="the system has no fork")
@pytest.mark.filterwarnings("ignore:.*fork")
@pytest.mark.usefixtures("never_cheap", "far_slower")
def test_a_forked_child_goes_back_by_itself_and_leaves_the_parents_choice() -> None:
    loader, _ = two_loaders()
    child = os.fork()
    if child == 0:
        code = 1
        with suppress(BaseException):
            loader._live_here()  # as its iter() does: what was found, and how, is the parent's
            assert preferred(loader) == [False]
            takes_cpu(loader)
            batches = list(loader)
            right = indices(batches) == list(range(4096)) and preferred(loader) == [True]
            made_here = [all(here(batch)) for batch in batches]
            code = 0 if right and False in made_here and all(made_here[-64:]) else 2
        os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert preferred(loader) == [False]
