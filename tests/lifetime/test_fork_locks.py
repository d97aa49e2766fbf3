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
from threadloader._work import progress

loader = ThreadLoader(range(100), 4, threads=2, prefetch=2, persistent_workers=True)
iterator = iter(loader)
next(iterator)
"""
LOCKS = [
    "loader._session.planning",
    "loader._session.ring._lock",
    "iterator._progress._lock",
    "next(iter(loader._session.kept_workers._groups))._lock",
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
