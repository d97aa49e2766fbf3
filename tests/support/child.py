"""A script in an interpreter of its own: one that ends, is forked, or imports afresh."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import threadloader
from support.patience import PATIENCE

# The package that is tested, and `support`; then what this process was given.
PATHS = (Path(threadloader.__file__).parents[1], Path(__file__).parents[1])

# Forks while another thread holds a lock, and prints how the child ended: an alarm ends it if it
# hangs.  Formatted with the lock, what the child does, and the seconds of the alarm.
FORK_WHILE_HELD = """
import os, signal, threading
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
    signal.alarm({seconds})
    {does}
_, status = os.waitpid(child, 0)
done.set()
holder.join()
print(os.waitstatus_to_exitcode(status))
"""


def run_child(script: str, *options: str) -> tuple[int, str, str]:
    """Run a script to its end.

    Args:
        script: Python.
        options: Of the interpreter.

    Returns:
        The exit code, and what was printed, without spaces at its ends, and what was complained.
    """
    paths = [*map(str, PATHS), os.environ.get("PYTHONPATH")]
    done = subprocess.run(
        [sys.executable, *options, "-c", script],
        capture_output=True,
        text=True,
        check=False,
        timeout=2 * PATIENCE,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, paths))},
    )
    return done.returncode, done.stdout.strip(), done.stderr
