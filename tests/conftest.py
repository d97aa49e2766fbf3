"""Fixtures that every test may use: threads that can neither outlive nor hang a test.

Nothing here imports the loader, and torch with it, before a test runs: xdist's own process has
none to run.

What blocks waits for `PATIENCE` at the most, in a thread of `spawn`.  A test that hangs all the
same fails after `TEST_LIMIT`, and pytest's ``faulthandler_timeout`` ends the process some minutes
later, should even that not help.
"""

from __future__ import annotations

import gc
import signal
import sys
import sysconfig
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from support.clock import clock
from support.patience import PATIENCE, PAUSE

__all__ = ["PATIENCE", "PAUSE", "TEST_LIMIT", "clock"]


# Their `assert`s tell as much as a test's own.
pytest.register_assert_rewrite("support.workers")

GARBAGE_SECONDS = 0.1  # that a thread of a dropped loader has to end, before garbage is collected
TEST_LIMIT = 4 * PATIENCE  # seconds: three blocked calls inside each other, and the threads' ends

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # A shell without job control starts what is in the background so, and children inherit it:
    # tests of Ctrl-C would interrupt nobody.
    signal.signal(signal.SIGINT, signal.default_int_handler)

# Machines of CI are slow and shared: an example may take its time, and no test is timed.
settings.register_profile(
    "threadloader", deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("threadloader")


class HangError(BaseException):
    """A test took too long; neither ``except Exception`` nor hypothesis goes on after it."""


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_collection() -> Iterator[None]:
    """Let no collection of garbage look at what lives as long as the run does.

    That is half a million objects: modules, and pytest's own of many thousand tests.  Each
    `gc.collect` of a test, or of what it tests, would take a quarter of a second for them.
    """
    gc.disable()  # hardly anything dies meanwhile, and they would be looked at again and again
    try:
        return (yield)
    finally:
        gc.enable()
        gc.collect()
        gc.freeze()


def _stacks() -> str:
    """Return where every thread is, by its innermost calls."""
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    return "\n".join(
        f"{names.get(ident, ident)}:\n{''.join(traceback.format_stack(frame, 12))}"
        for ident, frame in sys._current_frames().items()  # noqa: SLF001  # documented
    )


@pytest.fixture(autouse=True)
def a_test_that_hangs_fails() -> Iterator[None]:
    """Fail a test whose main thread is blocked, where pytest could only end the process.

    That would be the end of a worker of xdist's, with a word about neither the test nor the others
    that it still had.  Signals run handlers in the main thread alone, and not on Windows.
    """

    def fail(*_: object) -> None:
        msg = f"the test took longer than {TEST_LIMIT:.0f} seconds\n{_stacks()}"
        raise HangError(msg)

    if not hasattr(signal, "SIGALRM") or threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGALRM, fail)
    signal.setitimer(signal.ITIMER_REAL, TEST_LIMIT)
    yield
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGALRM, before)


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
    deadline = time.monotonic() + PATIENCE
    for thread in set(threading.enumerate()) - before:
        if thread.name.startswith("test-"):
            continue  # of `spawn`: what it waits for is what the test is about
        while thread.ident is None and time.monotonic() < deadline:
            time.sleep(0.01)  # it is being started by another that ends
        thread.join(GARBAGE_SECONDS)
        if thread.is_alive():
            # What one thread made and another drops may stay, without a GIL, until a collection.
            gc.collect()
            thread.join(max(0.0, deadline - time.monotonic()))
        assert not thread.is_alive(), f"{thread.name} is still running"


@pytest.fixture
def first_sample_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let other samples begin soon, as the first one waits for them where no loader can see it."""
    monkeypatch.setattr("threadloader._engine.workers.FIRST_SECONDS", 0.05)


@pytest.fixture
def slots_for_all_leaves(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let small leaves take slots, too, so that small samples show what becomes of slots."""
    monkeypatch.setattr("threadloader._batch.layout.SLOT_NBYTES", 1)


@pytest.fixture
def one_row_tickets(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let each row be a ticket, so that rows before a late one are written."""
    monkeypatch.setattr("threadloader._order.tickets.TICKET_SECONDS", 0.0)


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
