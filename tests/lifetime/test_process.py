"""What is done at the interpreter's exit, and in forked children, and in which order."""

from __future__ import annotations

import itertools
import os
from typing import TYPE_CHECKING

import pytest
from support.child import run_child
from support.patience import PATIENCE

if TYPE_CHECKING:
    from support.patience import Spawn

OWNERS = ["_work.progress", "_threads.pool", "_threads.per_thread", "_lifetime.dropping"]


@pytest.mark.parametrize("imported", list(itertools.permutations(OWNERS)), ids=" ".join)
def test_the_exit_goes_through_its_phases_whatever_is_imported_first(
    imported: tuple[str, ...], spawn: Spawn
) -> None:
    imports = "; ".join(f"import threadloader.{name}" for name in imported)
    script = f"""
import sys
sys.modules["torch"] = None
{imports}
from threadloader._lifetime import process

def told(phase, function):
    return lambda: (print(phase.name, function.__module__, process.is_exiting()), function())

assert not process.is_exiting()
for phase, function in process._at_exit.items():
    process._at_exit[phase] = told(phase, function)
"""
    code, output, errors = spawn(run_child, script).result(3 * PATIENCE)
    assert (code, errors) == (0, "")
    assert output.splitlines() == [
        "CANCEL_EPOCHS threadloader._work.progress True",
        "END_THREADS threadloader._threads.pool True",
        "CLOSE_INSTANCES threadloader._threads.per_thread True",
        "CALL_FINALIZERS threadloader._lifetime.dropping True",
    ]


SCRIPT = """
import sys
sys.modules["torch"] = None
import numpy as np
from threadloader import ThreadLoader
from threadloader._lifetime import process
from threadloader.datasets import PerThread
from threadloader._lifetime.dropping import when_dropped

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
watched = Here()
when_dropped(watched, print, "finalizer called", at_exit=True)
loader = ThreadLoader(Numbers(), 4, threads=2)
iterator = iter(loader)
next(iterator)
"""


def test_at_the_exit_epochs_end_then_threads_then_instances_and_finalizers(spawn: Spawn) -> None:
    script = f"""{SCRIPT}
import threading

workers = [one for one in threading.enumerate() if one is not threading.main_thread()]
assert len(workers) == 2

def told(phase, function):
    def tell():
        function()
        print(phase.name, iterator._progress.cancelled, any(one.is_alive() for one in workers))
    return tell

for phase, function in process._at_exit.items():
    process._at_exit[phase] = told(phase, function)
"""
    code, output, errors = spawn(run_child, script).result(3 * PATIENCE)
    assert (code, errors) == (0, "")
    lines = output.splitlines()
    assert lines[0].startswith("CANCEL_EPOCHS True")
    assert lines[1:] == [
        "END_THREADS True False",
        "instance closed",
        "CLOSE_INSTANCES True False",
        "finalizer called",
        "CALL_FINALIZERS True False",
    ]


def test_a_phase_that_fails_is_told_and_the_next_ones_come(spawn: Spawn) -> None:
    script = f"""{SCRIPT}
def fail():
    raise KeyboardInterrupt("in a phase")

process._at_exit[process.Phase.CANCEL_EPOCHS] = fail
"""
    code, output, errors = spawn(run_child, script).result(3 * PATIENCE)
    assert (code, output.splitlines()) == (0, ["instance closed", "finalizer called"])
    assert "in a phase" in errors


@pytest.mark.skipif(not hasattr(os, "fork"), reason="the system has no fork")
@pytest.mark.parametrize("lock", ["devices._making", "sharding._walking"])
def test_a_lock_of_the_process_is_free_in_a_forked_child(lock: str, spawn: Spawn) -> None:
    pytest.importorskip("torch")
    script = f"""
import os, threading, warnings
from threadloader import ThreadLoader
from threadloader._torch import devices, sharding
warnings.simplefilter("ignore")
held, done = threading.Event(), threading.Event()

def hold():
    with {lock}:
        held.set()
        done.wait()

holder = threading.Thread(target=hold)
holder.start()
held.wait()
child = os.fork()
if child == 0:
    os._exit(0 if {lock}.acquire(blocking=False) else 1)
_, status = os.waitpid(child, 0)
done.set()
holder.join()
print(os.waitstatus_to_exitcode(status))
"""
    assert spawn(run_child, script).result(3 * PATIENCE)[:2] == (0, "0")
