"""A script in an interpreter of its own: one that ends, is forked, or imports afresh."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import Timer
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
    return subprocess.run(
        [sys.executable, *map(str, arguments)],
        capture_output=True,
        text=True,
        check=False,
        timeout=2 * PATIENCE,
        env=_environment() | (env or {}),
        **options,
    )


@contextmanager
def running(
    *command: object, env: dict[str, str] | None = None, **options: Any
) -> Iterator[subprocess.Popen[Any]]:
    """Run a command, and kill it and all that it has started: at the context's end, or if it hangs.

    Args:
        command: With its arguments.
        env: Its environment; by default this process's, with the paths of the package.
        options: Of `subprocess.Popen`.
    """
    with subprocess.Popen(
        list(map(str, command)),
        stdout=subprocess.PIPE,
        env=_environment() if env is None else env,
        start_new_session=True,  # a group of its own; a terminal interrupts the whole group, too
        **options,
    ) as process:

        def kill() -> None:
            with suppress(ProcessLookupError):
                process.kill() if os.name == "nt" else os.killpg(process.pid, signal.SIGKILL)

        watchdog = Timer(PATIENCE, kill)
        watchdog.start()
        try:
            yield process
        finally:
            watchdog.cancel()
            kill()


def _environment() -> dict[str, str]:
    paths = [*map(str, PATHS), os.environ.get("PYTHONPATH")]
    return os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, paths))}
