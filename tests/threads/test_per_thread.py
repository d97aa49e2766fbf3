"""One instance a thread: made on first use, closed once, by the thread that made it."""

from __future__ import annotations

import copy
import os
import pickle
import sys
from collections.abc import Callable
from functools import partial
from threading import Event, Thread, get_ident
from typing import Any

import pytest
from support.child import printed_by
from support.in_workers import THREADS, in_workers
from support.patience import PATIENCE

from threadloader.datasets import PerThread


class Handle:
    """Something open that knows its thread."""

    def __init__(self, name: str = "") -> None:
        self.name = name
        self.made_by = get_ident()
        self.closed_by: list[int] = []

    def close(self) -> None:
        self.closed_by.append(get_ident())

    @property
    def closed_once_at_home(self) -> bool:
        return self.closed_by == [self.made_by]


class Factory:
    """Makes handles and keeps them."""

    def __init__(self) -> None:
        self.made: list[Handle] = []

    def __call__(self) -> Handle:
        handle = Handle()
        self.made.append(handle)
        return handle


def run(function: Callable[[], Any]) -> None:
    thread = Thread(target=function)
    thread.start()
    thread.join(PATIENCE)
    assert not thread.is_alive()


def test_each_thread_has_an_instance_that_it_closes_when_it_ends() -> None:
    factory = Factory()
    handle = PerThread(factory)
    mine = handle()
    assert handle() is mine
    run(handle)
    _, other = factory.made
    assert other.made_by != mine.made_by
    assert other.closed_once_at_home
    assert not mine.closed_by


@pytest.mark.parametrize("opens_another", [False, True])
def test_what_another_thread_drops_is_closed_at_home_as_soon_as_it_can(opens_another: bool) -> None:
    factory = Factory()
    kept = [PerThread(factory)]
    opened, dropped = Event(), Event()
    closed_by: list[int] = []

    def use() -> None:
        kept[0]()
        opened.set()
        assert dropped.wait(PATIENCE)
        if opens_another:
            PerThread(Handle)()
        closed_by.extend(factory.made[0].closed_by)

    thread = Thread(target=use)
    thread.start()
    assert opened.wait(PATIENCE)
    kept.clear()
    assert not factory.made[0].closed_by  # its thread may be reading
    dropped.set()
    thread.join(PATIENCE)
    assert closed_by == ([factory.made[0].made_by] if opens_another else [])
    assert factory.made[0].closed_once_at_home


def test_close_closes_the_callers_instance_and_the_next_call_makes_another() -> None:
    factory = Factory()
    handle = PerThread(factory)
    handle.close()  # nothing is open yet
    first = handle()
    run(handle.close)  # of a thread that has none
    assert not first.closed_by
    handle.close()
    handle.close()
    assert first.closed_once_at_home
    assert handle() is not first
    assert first.closed_once_at_home


def test_what_close_raises_is_raised_and_counts_as_closed() -> None:
    calls: list[Handle] = []

    def fail(handle: Handle) -> None:
        calls.append(handle)
        raise OSError("disk full")

    handle = PerThread(Handle, fail)
    first = handle()
    with pytest.raises(OSError, match="disk full"):
        handle.close()
    handle.close()
    assert calls == [first]
    assert handle() is not first
    with pytest.raises(OSError, match="disk full"):
        handle.close()


def test_an_error_at_a_threads_end_is_told_and_the_others_are_closed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    log: list[str] = []
    told: list[Any] = []
    monkeypatch.setattr(sys, "unraisablehook", lambda args: told.append(repr(args.exc_value)))

    def close(handle: Handle) -> None:
        log.append(handle.name)
        if handle.name in "bc":
            raise OSError(handle.name)

    handles = [PerThread(partial(Handle, name), close) for name in "abcd"]
    run(lambda: [handle() for handle in handles])
    assert log == ["d", "c", "b", "a"]
    assert told == ["OSError('c')", "OSError('b')"]


def test_an_instance_in_the_place_of_the_factory_is_refused() -> None:
    with pytest.raises(TypeError, match=r"Handle object.* can't be called: use a lambda"):
        PerThread(Handle())  # type: ignore[arg-type]


def test_copies_are_the_object_itself() -> None:
    handle = PerThread(Handle)
    assert copy.copy(handle) is handle
    assert copy.deepcopy({"handle": handle})["handle"] is handle


def test_pickling_takes_the_functions_and_no_instance() -> None:
    handle = PerThread(partial(Handle, "x"), Handle.close)
    mine = handle()
    other = pickle.loads(pickle.dumps(handle))
    assert other() is not mine
    assert other().name == "x"
    other.close()
    assert not mine.closed_by


@pytest.mark.parametrize("how", ["auto", "shared", "deep"])
@pytest.mark.parametrize("persistent", [False, True])
def test_each_worker_has_one_handle_whatever_it_has_of_the_dataset(
    how: Any, persistent: bool
) -> None:
    options: dict[str, Any] = {"dataset_copy": how, "persistent_workers": persistent}
    pairs = in_workers(PerThread(Handle), lambda handle: (handle(), handle()), **options)
    assert all(first is second for first, second in pairs)
    assert len({handle for handle, _ in pairs}) == THREADS
    assert all(handle.closed_once_at_home for handle, _ in pairs)


FORKING = """
import os, threading, warnings
from threadloader.datasets import PerThread

warnings.simplefilter("ignore")  # a fork with threads
parent = os.getpid()

class Handle:
    def __init__(self):
        self.process = os.getpid()
    def close(self):
        who = "child" if os.getpid() != parent else "parent"
        whose = "its own" if self.process == os.getpid() else "ANOTHER'S"
        os.write(1, f"{who} closes {whose}\\n".encode())
    def __del__(self, getpid=os.getpid, write=os.write):
        if self.process != getpid():
            write(1, b"finalized in the child\\n")

handle = PerThread(Handle)
mine = handle()
opened, ended = threading.Event(), threading.Event()
def use():
    handle()
    opened.set()
    ended.wait()
thread = threading.Thread(target=use)
thread.start()
opened.wait()
child = os.fork()
if not child:
    assert handle() is handle() is not mine
    del mine
    # A new thread may have the identifier of one that the parent has.
    threads = [threading.Thread(target=handle) for _ in range(8)]
    for started in threads:
        started.start()
    for started in threads:
        started.join()
    handle.close()
    handle = None
    os._exit(0)
os.waitpid(child, 0)
assert handle() is mine
ended.set()
thread.join()
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="the system has no fork")
def test_a_forked_child_makes_and_closes_its_own_and_leaves_its_parents_alone() -> None:
    lines = printed_by(FORKING).splitlines()
    assert lines == ["child closes its own"] * 9 + ["parent closes its own"] * 2
