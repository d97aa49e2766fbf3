"""What each worker has of an object: samples that several workers load at once ask about it."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable
from functools import partial
from threading import BrokenBarrierError
from typing import Any, NamedTuple

from support.worker_copies import THREADS, Meeting
from threadloader import ThreadLoader

ROWS = 1 + THREADS  # the first sample runs alone; the others need a worker each
MANY_ROWS = 32  # where the loader chooses its threads

_numbers = itertools.count()
_asked: dict[int, Question] = {}  # of the module, so that no object of the dataset leads there


class Question(NamedTuple):
    """What a sample does to its worker's object, what it returns, and how it lets others in."""

    put: Callable[[Any, int], object]
    get: Callable[[Any], Any]
    meet: Callable[[], object]
    give_up: Callable[[BaseException], object]


class Asks:
    """A dataset that keeps a value."""

    def __init__(self, value: Any, number: int, rows: int) -> None:
        self.value, self.number, self.rows = value, number, rows

    def __len__(self) -> int:
        return self.rows

    def __getitem__(self, index: int) -> Any:
        return answer(self.value, self.number, index)


def answer(value: Any, number: int, index: int) -> Any:
    put, get, meet, give_up = _asked[number]
    try:
        put(value, index)
        meet()
        return get(value)
    except BaseException as error:
        give_up(error)
        raise


def answers(value: Any, number: int, samples: list[int]) -> Any:
    """Collate the one sample of a batch."""
    return answer(value, number, samples[0])


def only(samples: list[Any]) -> Any:
    return samples[0]


def nothing(*_: object) -> None:
    """Do nothing."""


def pause() -> None:
    """Let other threads go on, if there are any."""
    time.sleep(0.0005)


def itself(value: Any) -> Any:
    return value


def in_workers(
    value: Any,
    get: Callable[[Any], Any] = itself,
    put: Callable[[Any, int], object] = nothing,
    threads: int | None = THREADS,
    where: str = "dataset",
    **options: Any,
) -> list[Any]:
    """Return what samples get from their worker's copy of a value, after others have written.

    Args:
        value: An attribute of a dataset, or an argument of a collate function.
        get: Called with the copy when the others have written.
        put: Called with the copy and the sample's number.
        threads: Of the loader. With `THREADS` each sample after the first one has a worker of its
            own. None is the loader's default: samples pause, as nobody knows how many there are.
        where: ``"dataset"`` or ``"collate_fn"``.
        options: Other arguments of the loader.
    """
    number = next(_numbers)
    meeting = Meeting()
    meet: Callable[[], object] = {THREADS: meeting.wait, None: pause}.get(threads, nothing)
    _asked[number] = Question(put, get, meet, meeting.give_up)
    rows = MANY_ROWS if threads is None else ROWS
    dataset: Any = Asks(value, number, rows)
    collate: Any = only
    if where == "collate_fn":
        dataset, collate = list(range(rows)), partial(answers, value, number)
    try:
        with ThreadLoader(dataset, 1, threads=threads, collate_fn=collate, **options) as loader:
            return list(loader)
    except BrokenBarrierError as error:
        raise meeting.error or error from None
    finally:
        del _asked[number]
