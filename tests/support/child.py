"""A script in an interpreter of its own: one that ends, is forked, or imports afresh."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

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
    done = run_python(*options, "-c", script)
    return done.returncode, done.stdout.strip(), done.stderr


def printed_by(script: str) -> str:
    """Return what a script prints, which ends well."""
    code, told, errors = run_child(script)
    assert code == 0, errors
    return told


def run_python(
    *arguments: object, env: dict[str, str] | None = None, **options: Any
) -> subprocess.CompletedProcess[str]:
    """Run the interpreter to its end; return how it ended and what it wrote.

    Args:
        arguments: Of the interpreter.
        env: More of its environment.
        options: Of `subprocess.run`.
    """
    paths = [*map(str, PATHS), os.environ.get("PYTHONPATH")]
    path = {"PYTHONPATH": os.pathsep.join(filter(None, paths))}
    return subprocess.run(
        [sys.executable, *map(str, arguments)],
        capture_output=True,
        text=True,
        check=False,
        timeout=2 * PATIENCE,
        env=os.environ | path | (env or {}),
        **options,
    )
