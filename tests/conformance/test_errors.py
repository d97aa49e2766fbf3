"""Errors of datasets, samplers and collate functions: which, where, and what follows them."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest
import torch
from support.patience import PATIENCE
from support.pictures import picture

from conformance.datasets import Raises, Samples, WholeBatches
from conformance.loading import THREADS, batches, errors, outcomes
from threadloader import ThreadLoader

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from concurrent.futures import Future

BAD = Raises(lambda: ValueError("bad sample"))


class TwoArgumentsError(Exception):
    def __init__(self, first: int, second: int) -> None:
        super().__init__(first, second)


@dataclass(frozen=True)
class FrozenError(Exception):
    """An error that refuses attributes: a traceback or a note cannot be set from outside."""

    code: int


def _noted(notes: Any) -> Exception:
    error = ValueError("noted before")
    error.__notes__ = notes
    return error


ERRORS: dict[str, Callable[[], BaseException]] = {
    "ValueError": lambda: ValueError("bad sample"),
    "KeyError": lambda: KeyError("key"),
    "IndexError": lambda: IndexError("index"),
    "of two arguments": lambda: TwoArgumentsError(1, 2),
    "AssertionError": AssertionError,
    "MemoryError": MemoryError,
    "StopAsyncIteration": StopAsyncIteration,
    "group": lambda: ExceptionGroup("several", [ValueError(1)]),
    "frozen": lambda: FrozenError(3),
    "with a note": lambda: _noted(["a note"]),
    "with notes that are no list": lambda: _noted("text"),
}


@pytest.mark.parametrize("batch_size", [2, None])
@pytest.mark.parametrize("kind", [Samples, WholeBatches])
@pytest.mark.parametrize("case", ERRORS)
def test_a_sample_that_fails_fails_its_batch_alone(
    case: str, kind: type[Samples], batch_size: int | None, alike: Callable[..., Any]
) -> None:
    made = [0, 1, 2, Raises(ERRORS[case]), 4]
    assert len(errors(alike(lambda loader: loader(kind(made), batch_size)))) == 2


@pytest.mark.parametrize("batch_size", [2, 4, 8])
def test_of_several_errors_in_a_batch_the_first_row_s_is_raised(
    batch_size: int, alike: Callable[..., Any]
) -> None:
    made = [0, *(Raises(partial(ValueError, number)) for number in range(1, 12))]
    assert errors(alike(lambda loader: loader(Samples(made), batch_size)))


@pytest.mark.parametrize("position", [0, 1, 5, 9])
def test_every_batch_but_the_failed_one_is_delivered(
    position: int, alike: Callable[..., Any]
) -> None:
    made: list[Any] = list(range(20))
    made[2 * position] = BAD
    told = alike(lambda loader: loader(Samples(made), 2))
    assert (len(batches(told)), len(errors(told))) == (18, 2)


def test_an_epoch_of_nothing_but_errors(alike: Callable[..., Any]) -> None:
    told = alike(lambda loader: loader(Samples([BAD] * 12), 2))
    assert errors(told) == [ValueError] * 12


def _fail_on_two(samples: list[int]) -> list[int]:
    if 2 in samples:
        raise KeyError(2)
    return samples


@pytest.mark.parametrize("batch_size", [1, 2, 6])
def test_a_collate_fn_that_fails(batch_size: int, alike: Callable[..., Any]) -> None:
    told = alike(lambda loader: loader(Samples(range(6)), batch_size, collate_fn=_fail_on_two))
    assert errors(told) == [KeyError] * 2


def _self_containing() -> list[Any]:
    loop: list[Any] = []
    loop.append(loop)
    return loop


@pytest.mark.parametrize("threads", THREADS)
@pytest.mark.parametrize(
    "made",
    [[[1], _self_containing(), 2, 3], [{torch.ones(2): 1}, {torch.ones(2): 1}, 2, 3]],
    ids=["a list in itself", "keys with no truth value"],
)
def test_samples_that_cannot_be_compared_fail_their_batch_alone(
    made: list[Any], threads: int, spawn: Callable[..., Future[Any]]
) -> None:
    loader = ThreadLoader(Samples(made), 2, threads=threads)
    first, second = spawn(lambda: list(outcomes(loader))).result(PATIENCE)
    assert first[0] == "error"
    assert second == ("batch", picture(torch.tensor([2, 3])))


class FailsAt:
    """An iterable of batches of one index that fails at some and goes on after."""

    def __init__(self, *positions: int, when_started: bool = False) -> None:
        self.positions = positions
        self.when_started = when_started
        self.position = -1

    def __iter__(self) -> Iterator[list[int]]:
        if self.when_started:
            raise OSError("no sampler")
        self.position = -1
        return self

    def __next__(self) -> list[int]:
        self.position += 1
        if self.position in self.positions:
            raise OSError(self.position)
        if self.position >= 8:
            raise StopIteration
        return [self.position, self.position + 1]


def _fails_as_generator() -> Iterator[list[int]]:
    yield [1, 2]
    yield [3]
    raise OSError("generator")


SAMPLERS: dict[str, Callable[[], Any]] = {
    "at first": lambda: FailsAt(0),
    "in the middle": lambda: FailsAt(3),
    "at last": lambda: FailsAt(8),
    "several times": lambda: FailsAt(1, 2, 7),
    "when started": lambda: FailsAt(when_started=True),
    "and ends": _fails_as_generator,
}


@pytest.mark.parametrize("case", SAMPLERS)
def test_a_sampler_that_fails(case: str, alike: Callable[..., Any]) -> None:
    told = alike(lambda loader: loader(Samples(range(10)), batch_sampler=SAMPLERS[case]()))
    assert OSError in errors(told)


@pytest.mark.parametrize("case", SAMPLERS)
def test_a_sampler_that_fails_among_samples_that_fail(case: str, alike: Callable[..., Any]) -> None:
    made = [0, BAD, 2, 3, BAD, 5, 6, 7, 8, 9]
    alike(lambda loader: loader(Samples(made), batch_sampler=SAMPLERS[case]()))
