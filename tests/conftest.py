"""Fixtures that every test may use: threads that can neither outlive nor hang a test."""

from __future__ import annotations

import sys
import sysconfig
import threading
import time
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, settings

from threadloader import memory

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

PATIENCE = 120.0  # seconds before a blocked call counts as a deadlock

# Machines of CI are slow and shared: an example may take its time, and no test is timed.
settings.register_profile(
    "threadloader", deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("threadloader")


@pytest.fixture(autouse=True)
def the_gil_stays_off() -> Iterator[None]:
    """Fail a test behind which some import switched the GIL back on: the wrong build is tested."""
    yield
    if sysconfig.get_config_var("Py_GIL_DISABLED"):
        assert not sys._is_gil_enabled()


@pytest.fixture(autouse=True)
def no_thread_is_left_behind() -> Iterator[None]:
    """Fail a test that leaves a thread running.

    Source: ``wait_threads_exit`` in CPython Lib/test/support/threading_helper.py.
    """
    before = set(threading.enumerate())
    yield
    for thread in set(threading.enumerate()) - before:
        if thread.name.startswith("test-"):
            continue  # of `spawn`: what it waits for is what the test is about
        deadline = time.monotonic() + PATIENCE
        while thread.ident is None and time.monotonic() < deadline:
            time.sleep(0.01)  # it is being started by another that ends
        thread.join(PATIENCE)
        assert not thread.is_alive(), f"{thread.name} is still running"


@pytest.fixture
def slots_for_all_leaves(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let small leaves take slots, too, so that small samples show what becomes of slots."""
    monkeypatch.setattr(memory, "SLOT_NBYTES", 1)


@pytest.fixture
def spawn() -> Callable[..., Future[Any]]:
    """Call a function in a daemon thread; its result is a future.

    Not `ThreadPoolExecutor`: leaving its ``with`` block joins, so that a lost wake-up would hang
    the run where it should fail one test.
    """

    def call(function: Callable[..., Any], *args: object) -> Future[Any]:
        future: Future[Any] = Future()

        def run() -> None:
            try:
                future.set_result(function(*args))
            except BaseException as error:  # noqa: BLE001  # handed to the test
                future.set_exception(error)

        threading.Thread(target=run, name=f"test-{function}", daemon=True).start()
        return future

    return call
