"""The calling thread and workers make the batches by turns: nobody sees it in the batches."""

# ruff: noqa: SLF001  # a loader's tuner has no public name

from __future__ import annotations

import asyncio
import random
import threading
import time
from collections.abc import Iterator, Sequence
from itertools import cycle
from typing import Any

import numpy as np
import pytest
from support.acting import Acting
from support.patience import PATIENCE, Spawn

from threadloader import ThreadLoader, TokenBatches
from threadloader._threads.tuner import Tuner

SCRIPTS = [(2, 0), (2, 2, 2, 0, 0), (1, 2, 0), (2, 1, 2)]
KINDS = [{}, {"threads": 2}, {"threads": 2, "in_order": False}, {"persistent_workers": True}]


class ScriptedTuner(Tuner):
    """Goes from one number to the next at each look, which comes with each batch.

    Args:
        numbers: In this order, again and again; 0 for the calling thread.
    """

    def __init__(self, numbers: Sequence[int]) -> None:
        super().__init__()
        self._numbers = cycle(numbers)
        self.seen: list[int] = []  # each number that there was

    def _set(self, number: int) -> None:
        super()._set(number)
        self.due = 0.0

    def stay(self) -> None:
        """Try again with the next batch."""
        self._set(0)

    def look(self, *_: Any) -> int:
        """Return the next number."""
        self.number = max(self.limits.least, next(self._numbers))
        self.seen.append(self.number)
        self.prefers_inline, self.due = not self.number, 0.0
        return self.number


def script(loader: ThreadLoader[Any], *numbers: int) -> list[int]:
    """Let a loader's number of threads follow a script; return the numbers as they come."""
    tuner = ScriptedTuner(numbers)
    loader._session.kept.tuner = tuner
    return tuner.seen


def told(index: int) -> tuple[int, bool]:
    """Return a sample that tells whether the main thread made it."""
    return index, threading.current_thread() is threading.main_thread()


def drawn(index: int) -> tuple[Any, Any]:
    return np.int64(index), np.array([random.random(), np.random.rand()])  # noqa: NPY002


def samples(length: int = 256) -> Acting:
    return Acting(length, sample=told)


def dear(length: int = 64) -> Acting:
    """Return samples each of which takes long."""
    return Acting(length, lambda _: time.sleep(0.02), told)


class DearBatches(Acting):
    """A whole batch takes long."""

    def __getitems__(self, indices: list[int]) -> list[Any]:
        time.sleep(0.02)
        return list(map(told, indices))


def here(batch: Any) -> list[bool]:
    return [made_here for _, made_here in batch]


def indices(batches: list[Any]) -> list[int]:
    return [index for batch in batches for index, _ in batch]


@pytest.fixture
def cheap(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let all batches count as cheap, also on a busy machine."""
    for module in ("_engine.maker", "_order.tickets"):
        monkeypatch.setattr(f"threadloader.{module}.INLINE_SECONDS", PATIENCE)
    monkeypatch.setattr("threadloader._engine.maker.ONE_TICKET_SECONDS", PATIENCE)


@pytest.fixture
def untuned(monkeypatch: pytest.MonkeyPatch) -> None:
    """Try no other number, which a busy machine may make look better."""
    monkeypatch.setattr("threadloader._threads.tuner.WINDOW_SECONDS", PATIENCE)


@pytest.mark.parametrize("given", KINDS, ids=str)
@pytest.mark.parametrize("numbers", SCRIPTS)
def test_batches_are_those_of_no_threads(numbers: tuple[int, ...], given: dict[str, Any]) -> None:
    def batches(loader: ThreadLoader[Any]) -> list[Any]:
        drawn = [(index.tolist(), numbers.tolist()) for index, numbers in loader]
        return drawn if loader.in_order else sorted(drawn)

    options: dict[str, Any] = {"shuffle": True, "seed": 3, "output": "numpy"}
    plain = ThreadLoader(Acting(256, sample=drawn), 8, threads=0, **options)
    with ThreadLoader(Acting(256, sample=drawn), 8, **options, **given) as loader:
        seen = script(loader, *numbers)
        for _ in range(3):
            expected = batches(plain)
            assert batches(loader) == (expected if loader.in_order else sorted(expected))
        # Of persistent workers there is one at least.
        assert {*seen} >= ({*numbers} - {0} if given.get("persistent_workers") else {*numbers})


@pytest.mark.parametrize("taken", range(1, 12, 3))
def test_an_iterator_may_be_closed_or_dropped_at_any_moment(taken: int, spawn: Spawn) -> None:
    def load(*, closed: bool) -> None:
        loader: ThreadLoader[Any] = ThreadLoader(samples(), 4, collate_fn=list)
        script(loader, 2, 2, 0)
        iterator = iter(loader)
        for _ in range(taken):
            next(iterator)
        if closed:
            loader.close()
        del iterator
        assert indices(list(loader)) == list(range(256))
        loader.close()

    for closed in (True, False):
        spawn(lambda closed=closed: load(closed=closed)).result(PATIENCE)


@pytest.mark.usefixtures("cheap")
@pytest.mark.parametrize("collate_fn", [None, tuple], ids=["made at once", "of a function"])
def test_threads_are_tried_in_an_epoch_of_cheap_batches(collate_fn: Any) -> None:
    with ThreadLoader(samples(512), 4, collate_fn=collate_fn, output="numpy") as loader:
        script(loader, *[0] * 8, *[1] * 1000)
        assert not all(np.all(it[1] if collate_fn is None else here(it)) for it in loader)


def test_two_epochs_at_once_follow_the_number_that_either_finds() -> None:
    with ThreadLoader(samples(), 4, threads=2, collate_fn=list) as loader:
        script(loader, *[2] * 8, *[0] * 100_000)
        pairs = list(zip(loader, loader, strict=True))
        assert indices([one for one, _ in pairs]) == indices([other for _, other in pairs])
        assert not any(here(batch) == [True] * 4 for batch in pairs[0])
        assert all(here(batch) == [True] * 4 for batch in pairs[-1])


@pytest.mark.usefixtures("cheap")
@pytest.mark.parametrize("prefetch", [None, 3])
@pytest.mark.parametrize(
    "order",
    [
        {"batch_size": 16},
        {"batch_size": 16, "sampler": range(256)},
        {"batch_sampler": TokenBatches(range(1, 257), 1024, shuffle=False)},
    ],
    ids=["known", "list", "tokens"],
)
def test_no_thread_is_started_for_cheap_batches(
    order: dict[str, Any], prefetch: int | None
) -> None:
    options: dict[str, Any] = {"collate_fn": list, "prefetch": prefetch, **order}
    with ThreadLoader(samples(), **options, threads=2) as with_threads:
        expected = [indices([batch]) for batch in with_threads]
    before = set(threading.enumerate())
    loader: ThreadLoader[Any] = ThreadLoader(samples(), **options)
    for _ in range(2):
        batches = []
        for batch in loader:
            assert set(threading.enumerate()) <= before
            assert all(here(batch))
            batches.append(indices([batch]))
        assert batches == expected


class Lottery:
    """A sampler that draws from the random state of its loop."""

    def __iter__(self) -> Iterator[int]:
        return (random.randrange(64) for _ in range(96))


@pytest.mark.parametrize("given", [{}, {"prefetch": 3}, {"threads": 2}], ids=str)
def test_the_order_of_a_users_sampler_does_not_follow_the_number_that_is_found(
    given: dict[str, Any],
) -> None:
    def sample(index: int) -> Any:
        nbytes = 1 << 10 if index % 32 else 2 << 20  # which the window follows
        return np.full(nbytes, index, np.uint8)

    def order(*numbers: int, **given: Any) -> list[Any]:
        random.seed(3)
        dataset = Acting(64, sample=sample)
        with ThreadLoader(dataset, 1, sampler=Lottery(), output="numpy", **given) as loader:
            script(loader, *numbers)
            return [(int(batch[0, 0]), random.random()) for batch in loader]

    expected = order(0, **given)
    for numbers in SCRIPTS:
        assert order(*numbers, **given) == expected


@pytest.mark.usefixtures("untuned")
@pytest.mark.parametrize(
    ("dataset", "batch_size"),
    [(dear(), 1), (dear(), None), (DearBatches(64), 16)],
    ids=["one", "alone", "whole"],
)
def test_the_second_batch_is_made_ahead_if_the_first_was_dear(
    dataset: Any, batch_size: int | None
) -> None:
    given: dict[str, Any] = {} if batch_size is None else {"collate_fn": list}
    loader: ThreadLoader[Any] = ThreadLoader(dataset, batch_size, output="numpy", **given)
    first, second, *_ = loader
    if batch_size is None:
        first, second = [first], [second]
    assert all(here(first))
    assert not any(here(second))


@pytest.mark.usefixtures("untuned")
def test_a_first_batch_that_is_begun_here_is_finished_by_threads() -> None:
    loader: ThreadLoader[Any] = ThreadLoader(dear(), 16, collate_fn=list)
    first, *others = loader
    assert here(first)[0]
    assert not here(first)[-1]
    assert not any(made_here for batch in others for made_here in here(batch))


@pytest.mark.usefixtures("untuned")
def test_an_epoch_that_ends_soon_starts_no_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("_engine.maker", "_order.tickets"):
        monkeypatch.setattr(f"threadloader.{module}.START_SECONDS", PATIENCE)
    for given in ({}, {"threads": 2}):
        loader: ThreadLoader[Any] = ThreadLoader(samples(16), 4, collate_fn=list, **given)
        list(loader)  # which tells what samples take
        assert all(made_here for batch in loader for made_here in here(batch))


@pytest.mark.usefixtures("cheap")
@pytest.mark.parametrize("batches_before", [0, 2])
def test_threads_make_the_batches_that_are_awaited_in_an_event_loop(batches_before: int) -> None:
    def run_a_loop(index: int) -> Any:
        async def get() -> Any:
            return told(index)

        return asyncio.run(get())

    iterator = iter(ThreadLoader(Acting(48, sample=run_a_loop), 4, collate_fn=list))
    batches = [next(iterator) for _ in range(batches_before)]
    assert all(all(here(batch)) for batch in batches)

    async def rest() -> list[Any]:
        return list(iterator)

    others = asyncio.run(rest())
    assert not any(any(here(batch)) for batch in others)
    assert indices([*batches, *others]) == list(range(48))
