"""A forked child is not held up by locks that threads of the parent held at the fork."""

from __future__ import annotations

import os
import signal

import pytest
from support.child import FORK_WHILE_HELD, run_child
from support.patience import PATIENCE, Spawn

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="the system has no fork")

SCRIPT = """
import sys, warnings
warnings.simplefilter("ignore")  # of forks where there are threads
sys.modules["torch"] = None
from threadloader import ThreadLoader
from threadloader._threads import pool
from threadloader._engine import progress
from threadloader._worker import redirect

loader = ThreadLoader(range(100), 4, threads=2, prefetch=2, persistent_workers=True)
iterator = iter(loader)
next(iterator)
"""
LOCKS = [
    "loader._session.planning",
    "loader._session.kept.collation.ring._lock",
    "iterator._progress._lock",
    "next(iter(loader._session.kept_workers._groups))._lock",
    "redirect.hooks._lock",
]
DOES = {
    "loads": "sys.exit(7 if sum(len(batch) for batch in loader) == 100 else 1)",
    "closes and loads": "loader.close(); sys.exit(len(list(loader)) - 18)",
    "goes on and ends": """
    from threadloader import ClosedError
    assert not loader.statistics().slots.leased
    try:
        next(iterator)
    except ClosedError:
        iterator.close()
        del iterator
        sys.exit(7)
""",
}


@pytest.mark.parametrize("does", DOES)
def test_a_forked_child_does_not_wait_for_a_lock_that_was_held(does: str, spawn: Spawn) -> None:
    seconds = int(PATIENCE)
    code = "".join(
        SCRIPT + FORK_WHILE_HELD.format(lock=lock, does=DOES[does], seconds=seconds)
        for lock in LOCKS
    )
    exit_code, told, errors = spawn(run_child, code).result(3 * PATIENCE)
    assert exit_code == 0, errors
    assert told.split() == ["7"] * len(LOCKS), f"{-signal.SIGALRM} is a hang"


FORK_IN_AN_IMPORT = """
import os, random, signal, sys, threading, warnings
warnings.simplefilter("ignore")  # of forks where there are threads
sys.modules["torch"] = None
from threadloader import ThreadLoader, _lifetime

_lifetime.FORK_SECONDS = {seconds}
inside, forking = threading.Event(), threading.Event()
os.register_at_fork(before=forking.set)

class Draws:
    def __len__(self): return 64
    def __getitem__(self, index): return random.random()

class Finder:
    def find_spec(self, name, path=None, target=None):
        if name == "threadloader._worker.redirect":
            inside.set()
            forking.wait({seconds})

def load():
    return len(list(ThreadLoader(Draws(), 8, threads=2, seed=1)))

sys.meta_path.insert(0, Finder())
thread = threading.Thread(target=load)
thread.start()
inside.wait({seconds})
child = os.fork()
if child == 0:
    signal.alarm({seconds})
    os._exit(load())
thread.join()
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


def test_a_fork_waits_for_a_thread_that_imports_what_an_epoch_needs(spawn: Spawn) -> None:
    code = FORK_IN_AN_IMPORT.format(seconds=int(PATIENCE))
    exit_code, told, errors = spawn(run_child, code).result(3 * PATIENCE)
    assert exit_code == 0, errors
    assert told.split() == ["8"], f"{-signal.SIGALRM} is a hang"
