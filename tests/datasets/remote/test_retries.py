"""What is tried again, and when."""

from __future__ import annotations

import random
from http.client import IncompleteRead
from typing import Any

import pytest

from threadloader.datasets import Retries
from threadloader.datasets._remote.retries import persist
from threadloader.errors import RemoteError

URL = "https://host/a.tar"
AT_ONCE = Retries(attempts=5, first=0.0)


class Flaky:
    """Fails as often as it has errors, then returns 17."""

    def __init__(self, *errors: Exception) -> None:
        self.errors = list(errors)
        self.calls = 0

    def __call__(self) -> int:
        self.calls += 1
        if self.errors:
            raise self.errors.pop(0)
        return 17


class ClientsOwnError(Exception):
    def __init__(self, **values: Any) -> None:
        super().__init__(values)
        vars(self).update(values)


def test_a_wait_is_random_below_a_bound_that_doubles_and_the_servers_time_counts() -> None:
    retries = Retries(attempts=9, first=0.5, longest=3.0)
    bounds = [retries.wait_s(failed, None, lambda: 1.0) for failed in range(1, 6)]
    assert bounds == [0.5, 1.0, 2.0, 3.0, 3.0]
    assert retries.wait_s(3, None, lambda: 0.25) == 0.5
    assert retries.wait_s(10_000, None, lambda: 0.0) == 0.0
    assert retries.wait_s(1, 2.0, lambda: 0.0) == 2.0
    assert retries.wait_s(1, 2.0, lambda: 0.5) == 2.25  # not all at once
    assert retries.wait_s(1, 3600.0, lambda: 0.0) == 3.0  # up to the limit


@pytest.mark.parametrize(
    "error",
    [
        *(ClientsOwnError(status=425), ClientsOwnError(code=503), ClientsOwnError()),
        *(TimeoutError(), EOFError(), OSError(5, "Input/output error"), IncompleteRead(b"")),
    ],
    ids=repr,
)
def test_what_may_pass_is_tried_again(error: Exception) -> None:
    read = Flaky(*[error] * 4)
    assert (persist(read, AT_ONCE, URL, 3), read.calls) == (17, 5)


@pytest.mark.parametrize(
    "error",
    [
        *(ClientsOwnError(status=403), ClientsOwnError(code=404)),
        ClientsOwnError(response={"ResponseMetadata": {"HTTPStatusCode": 403}}),  # botocore's
        *(FileNotFoundError(), PermissionError(), ValueError(), ModuleNotFoundError()),
    ],
    ids=repr,
)
def test_what_can_not_pass_is_an_error_at_once(error: Exception) -> None:
    read = Flaky(error)
    with pytest.raises(RemoteError) as raised:
        persist(read, AT_ONCE, URL, 3)
    assert (raised.value.path, raised.value.offset, read.calls) == (URL, 3, 1)
    assert raised.value.__cause__ is error


def test_waiting_draws_no_random_number_of_the_samples() -> None:
    before = random.getstate()
    persist(Flaky(TimeoutError(), TimeoutError()), Retries(first=0.001), URL, None)
    assert random.getstate() == before
