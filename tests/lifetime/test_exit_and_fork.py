"""What is done at the interpreter's exit, and in forked children, and in which order."""

from __future__ import annotations

import os

import pytest
from support.child import FORK_WHILE_HELD, run_child
from support.patience import PATIENCE, Spawn

SCRIPT = """
import sys
sys.modules["torch"] = None
import numpy as np
from threadloader import ThreadLoader
from threadloader import _lifetime
from threadloader.datasets import PerThread

class Here:
    def close(self):
        print("instance closed")

class Numbers:
    def __len__(self):
        return 1000

    def __getitem__(self, index):
        return index

here = PerThread(Here)
here()
loader = ThreadLoader(Numbers(), 4, threads=2)
iterator = iter(loader)
next(iterator)
"""


def test_at_the_exit_epochs_end_then_threads_then_instances_then_finalizers(spawn: Spawn) -> None:
    script = f"""{SCRIPT}
import threading

workers = [one for one in threading.enumerate() if one is not threading.main_thread()]
assert len(workers) == 2

def told(phase, function):
    def tell():
        function()
        print(phase.name, iterator._progress.cancelled, any(one.is_alive() for one in workers))
    return tell

for phase, function in _lifetime._at_exit.items():
    _lifetime._at_exit[phase] = told(phase, function)
"""
    code, output, errors = spawn(run_child, script).result(3 * PATIENCE)
    assert (code, errors) == (0, "")
    lines = output.splitlines()
    assert lines[0].startswith("CANCEL_EPOCHS True")
    assert lines[1:] == [
        "END_THREADS True False",
        "instance closed",
        "CLOSE_INSTANCES True False",
        "END_COPIES True False",
        "END_FINALIZERS True False",
    ]


def test_a_phase_that_fails_is_told_and_the_next_ones_come(spawn: Spawn) -> None:
    script = f"""{SCRIPT}
def fail():
    raise KeyboardInterrupt("in a phase")

_lifetime._at_exit[_lifetime.Phase.CANCEL_EPOCHS] = fail
"""
    code, output, errors = spawn(run_child, script).result(3 * PATIENCE)
    assert (code, output.splitlines()) == (0, ["instance closed"])
    assert "in a phase" in errors


def test_what_is_called_when_an_object_is_dropped_is_not_called_at_the_exit() -> None:
    script = """
from threadloader._lifetime import when_dropped
class Thing: pass
thing = Thing()
call = when_dropped(thing, print, "called")
"""
    assert run_child(script) == (0, "", "")


@pytest.mark.skipif(not hasattr(os, "fork"), reason="the system has no fork")
def test_the_lock_of_accelerators_is_free_in_a_forked_child(spawn: Spawn) -> None:
    pytest.importorskip("torch")
    script = """
import warnings
from threadloader import ThreadLoader
from threadloader._torch import accelerators
warnings.simplefilter("ignore")
"""
    lock = "accelerators._making"
    does = f"os._exit(0 if {lock}.acquire(blocking=False) else 1)"
    script += FORK_WHILE_HELD.format(lock=lock, does=does, seconds=int(PATIENCE))
    assert spawn(run_child, script).result(3 * PATIENCE)[:2] == (0, "0")


FORKS = """
import atexit, os, signal, sys, threading, warnings
sys.modules["torch"] = None
from threadloader import ClosedError, ThreadLoader
from threadloader import _lifetime
warnings.simplefilter("ignore")

def loaded():
    signal.alarm({seconds})
    try:
        return sum(map(len, ThreadLoader(range(10), 4, threads=2)))
    except ClosedError:
        return 99

def fork(in_child):
    child = os.fork()
    if child == 0:
        signal.alarm({seconds})
        return in_child()
    print("child", os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
"""
has_fork = pytest.mark.skipif(not hasattr(os, "fork"), reason="the system has no fork")


def forks(script: str) -> tuple[int, str, str]:
    return run_child(FORKS.format(seconds=int(PATIENCE)) + script)


@has_fork
@pytest.mark.parametrize("does", ["os._exit(0)", "sys.exit(7)", "None", "1 / 0"])
def test_a_child_that_a_worker_forks_while_another_copies_ends(does: str, spawn: Spawn) -> None:
    script = f"""
from threadloader import register
began, copies, forked = threading.Event(), threading.Event(), threading.Event()

class Reader:
    pass

def opened(reader):
    if began.is_set():
        copies.set()
        forked.wait()
    return Reader()

class Forks:
    reader = None
    def __init__(self):
        self.reader = Reader()

    def __len__(self):
        return 8

    def __getitem__(self, index):
        if began.is_set() and not forked.is_set():  # any but the first: others wait for it
            copies.wait()
            fork(lambda: {does})
            forked.set()
        began.set()
        return index

register(Reader, opened)
print(len(list(ThreadLoader(Forks(), 4, threads=2, persistent_workers=True))))
"""
    assert spawn(forks, script).result(3 * PATIENCE) == (0, "child 0\n2", "")
