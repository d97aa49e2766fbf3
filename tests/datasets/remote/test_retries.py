"""What is tried again and when; and how a thread that waits is told to end."""

from __future__ import annotations

import gc
import random
import ssl
import time
from http.client import IncompleteRead, RemoteDisconnected
from typing import TYPE_CHECKING, Any

import pytest
from support.patience import PATIENCE

from threadloader._threads.waiting import Stop, stopped_by, stops_here, wait
from threadloader.datasets._remote.client import TransferError
from threadloader.datasets._remote.retries import GaveUpError, Retries, is_transient, retry
from threadloader.errors import ClosedError, DataError

if TYPE_CHECKING:
    from collections.abc import Callable
    from concurrent.futures import Future

AT_ONCE = Retries(attempts=5, first=0.0)
FOR_EVER = Retries(attempts=2, first=1000.0, longest=1000.0)


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
        super().__init__("failed")
        vars(self).update(values)


def test_a_wait_is_random_below_a_bound_that_doubles_up_to_a_limit() -> None:
    retries = Retries(attempts=9, first=0.5, longest=3.0)
    assert [retries.wait_s(failed, None, lambda: 1.0) for failed in range(1, 6)] == [
        *(0.5, 1.0, 2.0, 3.0, 3.0)
    ]
    assert retries.wait_s(3, None, lambda: 0.25) == 0.5
    assert retries.wait_s(10_000, None, lambda: 0.0) == 0.0


def test_the_server_says_when_to_come_back_up_to_the_limit() -> None:
    retries = Retries(first=0.5, longest=30.0)
    assert retries.wait_s(1, 7.0, lambda: 0.0) == 7.0
    assert retries.wait_s(1, 7.0, lambda: 0.5) == 7.25  # not all at once
    assert retries.wait_s(1, 3600.0, lambda: 0.0) == 30.0


@pytest.mark.parametrize(
    "wrong", [{"attempts": 0}, {"first": -1.0}, {"first": 2.0, "longest": 1.0}]
)
def test_a_policy_out_of_range_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="must"):
        Retries(**wrong)


@pytest.mark.parametrize("status", [408, 425, 429, 500, 502, 503, 504, 599])
@pytest.mark.parametrize("name", ["status", "code"])
def test_a_status_that_may_pass_is_tried_again(status: int, name: str) -> None:
    assert is_transient(ClientsOwnError(**{name: status}))


@pytest.mark.parametrize("status", [200, 206, 301, 400, 401, 403, 404, 410, 416, 451])
def test_a_status_that_stays_is_not(status: int) -> None:
    assert not is_transient(TransferError("no", status))
    assert not is_transient(ClientsOwnError(status=status))


def test_statuses_are_found_where_requests_and_botocore_have_them() -> None:
    class Response:
        status_code = 503

    assert is_transient(ClientsOwnError(response=Response()))
    of_botocore = {"Error": {"Code": "SlowDown"}, "ResponseMetadata": {"HTTPStatusCode": 403}}
    assert not is_transient(ClientsOwnError(response=of_botocore))


@pytest.mark.parametrize(
    "error",
    [
        ConnectionResetError(),
        BrokenPipeError(),
        TimeoutError(),
        EOFError(),
        OSError(5, "Input/output error"),
        RemoteDisconnected(),
        IncompleteRead(b""),
        TransferError("too few bytes"),
        ClientsOwnError(),
    ],
    ids=lambda error: type(error).__name__,
)
def test_failures_of_a_connection_may_pass(error: Exception) -> None:
    assert is_transient(error)


@pytest.mark.parametrize(
    "error",
    [
        FileNotFoundError(),
        PermissionError(),
        IsADirectoryError(),
        ssl.SSLCertVerificationError(),
        ValueError(),
        TypeError(),
        ModuleNotFoundError(),
        DataError("truncated", "a.tar"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_failures_that_another_try_repeats_do_not(error: Exception) -> None:
    assert not is_transient(error)


def test_a_read_succeeds_at_its_last_try() -> None:
    read = Flaky(*(ConnectionResetError() for _ in range(4)))
    assert (retry(read, AT_ONCE), read.calls) == (17, 5)


def test_a_read_fails_after_its_last_try_with_the_last_error() -> None:
    errors = [ConnectionResetError(number) for number in range(9)]
    read = Flaky(*errors)
    with pytest.raises(GaveUpError, match="after 5 tries") as raised:
        retry(read, AT_ONCE)
    assert raised.value.error is raised.value.__cause__ is errors[4]
    assert read.calls == 5


def test_what_can_not_pass_is_not_tried_again() -> None:
    read = Flaky(FileNotFoundError())
    with pytest.raises(GaveUpError):
        retry(read, AT_ONCE)
    assert read.calls == 1


def test_what_is_wrong_with_the_data_arrives_as_it_is() -> None:
    error = DataError("truncated", "a.tar")
    with pytest.raises(DataError) as raised:
        retry(Flaky(error), AT_ONCE)
    assert raised.value is error


def test_waiting_takes_as_long_as_the_server_says() -> None:
    started = time.monotonic()
    assert retry(Flaky(TransferError("busy", 429, 0.2)), AT_ONCE) == 17
    assert time.monotonic() - started >= 0.2


def test_waiting_draws_no_random_number_of_the_samples() -> None:
    before = random.getstate()
    retry(Flaky(TimeoutError(), TimeoutError()), Retries(first=0.001))
    assert random.getstate() == before


def test_a_stop_ends_the_waiting(spawn: Callable[..., Future[Any]]) -> None:
    stop, failed = Stop(), Stop()

    def read() -> None:
        failed.set()
        raise TimeoutError

    waiting = spawn(retry, read, FOR_EVER, stop)
    assert wait([failed], PATIENCE)
    stop.set()
    with pytest.raises(ClosedError):
        waiting.result(PATIENCE)


def test_the_end_of_a_worker_ends_its_waiting(spawn: Callable[..., Future[Any]]) -> None:
    stop, failed = Stop(), Stop()

    def work() -> None:
        def read() -> None:
            failed.set()
            raise TimeoutError

        with stopped_by(stop):
            retry(read, FOR_EVER)

    waiting = spawn(work)
    assert wait([failed], PATIENCE)
    stop.set()
    with pytest.raises(ClosedError):
        waiting.result(PATIENCE)


def test_nothing_is_tried_after_a_stop() -> None:
    stop, read = Stop(), Flaky()
    stop.set()
    with pytest.raises(ClosedError):
        retry(read, AT_ONCE, stop)
    assert read.calls == 0


@pytest.mark.parallel
def test_a_stop_wakes_all_that_wait_for_it(spawn: Callable[..., Future[Any]]) -> None:
    stop, other = Stop(), Stop()
    waiting = [spawn(wait, [other, stop], 1000.0) for _ in range(8)]
    stop.set()
    assert all(future.result(PATIENCE) for future in waiting)
    assert wait([stop], 1000.0)  # and those that come late


def test_a_wait_without_a_stop_ends_with_its_time() -> None:
    started = time.monotonic()
    assert not wait([Stop()], 0.05)
    assert time.monotonic() - started >= 0.05


def test_what_ends_a_thread_is_known_inside_and_forgotten_outside() -> None:
    stop, inner = Stop(), Stop()
    with stopped_by(stop):
        with stopped_by(inner):
            assert stops_here() == (stop, inner)
        assert stops_here() == (stop,)
    assert stops_here() == ()


def test_waiting_leaves_no_cycles_behind() -> None:
    def left() -> int:
        gc.collect()
        for _ in range(3):
            wait([Stop()], 0.001)
        return gc.collect()

    gc.disable()
    try:
        # What waiting left would be there each time; a thread of an earlier test ends only once.
        assert min(left() for _ in range(5)) == 0
    finally:
        gc.enable()
