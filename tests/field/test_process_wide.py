"""Samples that meet what belongs to the process: signals, event loops, functions of modules."""

from __future__ import annotations

import asyncio
import random
import signal
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from support.acting import Acting

from threadloader import ThreadLoader


def loop(_: int) -> Any:
    return asyncio.get_event_loop()


def alarm(_: int) -> Any:
    return signal.signal(signal.SIGALRM, signal.SIG_IGN)


@pytest.mark.parametrize(
    ("sample", "error", "hint"),
    [
        pytest.param(
            loop,
            RuntimeError,
            "asyncio.run",
        ),
        pytest.param(alarm, ValueError, "give the loader timeout="),
    ],
)
def test_an_error_of_being_a_thread_says_what_to_do(
    sample: Callable[[int], Any], error: type[Exception], hint: str
) -> None:
    with pytest.raises(error) as caught:
        list(ThreadLoader(Acting(8, sample=sample), threads=2))
    assert hint in caught.value.__notes__[1]
    with pytest.raises(error) as caught:
        list(ThreadLoader(Acting(8), threads=2, worker_init_fn=sample))
    assert hint in caught.value.__notes__[1]


FUNCTIONS = [random.random, random.getrandbits, np.random.rand, np.random.uniform]


def test_functions_are_equal_to_those_that_compilers_know() -> None:
    def now() -> list[Any]:
        return [random.random, random.getrandbits, np.random.rand, np.random.uniform]

    def sample(_: int) -> bool:
        known = dict.fromkeys(FUNCTIONS, "a type")
        return all(known.get(function) for function in now())

    for batch in ThreadLoader(Acting(8, sample=sample), threads=2):
        assert all(batch)
        assert sample(0)
        assert now() == FUNCTIONS
        assert now()[0] != FUNCTIONS[1]
        assert np.random.rand.__name__ == "rand"
