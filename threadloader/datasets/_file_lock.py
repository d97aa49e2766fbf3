"""A lock among the processes of a node, which saves work and guards nothing.

Of all threads and processes that want to do the same (download a block, load a sample), one does it
and the others wait.  Whoever can't have the lock goes on without it: where the folder can't be
written, where the file system has no locks, and where the holder is stopped for a minute.  So what
they write has to be right without a lock, too.

The operating system's locks are used, since they end with their process, however it dies.  The file
is removed with the lock, so a folder does not fill up.  Whoever waited for a file that was removed
tries anew with the one at that path.
"""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from threading import Thread
from typing import IO, TYPE_CHECKING
from uuid import uuid4

from threadloader._lifetime.dropping import DROPPED
from threadloader._threads.starting import start_all
from threadloader._threads.stopping import Stop, is_set, stops_here, wait
from threadloader.errors import ClosedError

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["LOCK", "FileLock", "has_locks", "lock_file"]

LOCK = ".lock"  # the ending of the files
PATIENCE_S = 60.0  # for a holder that lives and does not go on: stopped in a debugger, say


class FileLock:
    """A lock that the caller has, until it is released or dropped, or its process ends.

    A forked child has a copy, which is not the lock: releasing it there changes nothing.

    Args:
        file: Its open file, which has the lock.
        path: Of the file.

    Threads:
        release: compatible; also from finalizers.
    """

    __slots__ = ("_file", "_path", "_pid")

    def __init__(self, file: IO[bytes], path: Path) -> None:
        self._file, self._path, self._pid = file, path, os.getpid()

    def __del__(self) -> None:
        with suppress(Exception):  # at the interpreter's exit, modules may be gone
            self.release()

    def release(self) -> None:
        """Let another one have the lock.  Idempotent."""
        if self._file.closed:
            return
        if self._pid != os.getpid():
            self._file.close()
            return
        try:
            if os.name == "posix" and _is_at(self._file, self._path):
                # Before the lock is given back: another one could have it then.
                self._path.unlink(missing_ok=True)
        except OSError:
            pass
        finally:
            with suppress(OSError):
                _unlock(self._file)  # closing is not enough: a forked child has the file, too
            self._file.close()
        if os.name != "posix":  # Windows removes no file that is open, here or in other processes
            with suppress(OSError):
                self._path.unlink(missing_ok=True)


def lock_file(path: Path, *stops: Stop, waits: bool = True) -> FileLock | None:
    """Return the lock of a path; None if it can't be had.

    Args:
        path: Made if it is not there, and its folder, too.
        stops: End the wait; so does the end of the calling worker.
        waits: Whether to wait for who has the lock; otherwise None is returned.

    Raises:
        ClosedError: One of ``stops`` was set meanwhile.
    """
    while True:
        try:
            file = _opened(path)
        except OSError:  # the folder can't be written
            return None
        kept = False
        try:
            if not _lock_now(file) and not (waits and _lock_later(file, (*stops, *stops_here()))):
                return None
            kept = _is_at(file, path)
            if kept:
                return FileLock(file, path)
        except OSError:  # the file system has no locks
            return None
        finally:
            if not kept:
                file.close()


def has_locks(folder: Path) -> bool:
    """Whether files in a folder can be locked."""
    lock = lock_file(folder / f"{uuid4().hex}{LOCK}", waits=False)
    if lock is not None:
        lock.release()
    return lock is not None


def _opened(path: Path) -> IO[bytes]:
    try:
        return path.open("ab", buffering=0)
    except FileNotFoundError:
        path.parent.mkdir(parents=True, exist_ok=True)
        return path.open("ab", buffering=0)


def _is_at(file: IO[bytes], path: Path) -> bool:
    """Whether a path is that of an open file, and no other was put in its place."""
    try:
        return os.path.samestat(os.fstat(file.fileno()), path.stat())
    except FileNotFoundError:
        return False


class _Outcome:
    """What became of a wait for a lock: set by the waiting thread, ``ended`` last."""

    __slots__ = ("ended", "locked")

    def __init__(self) -> None:
        self.locked = False
        self.ended = Stop()


def _lock_later(file: IO[bytes], stops: tuple[Stop, ...]) -> bool:
    """Wait for the lock of a file; return whether it was had.

    A call of the operating system that waits can't be stopped, so a thread of its own makes it.

    Raises:
        ClosedError: One of ``stops`` was set meanwhile.
    """
    # A file of its own, with the same lock: closing the caller's would not end the call, and the
    # lock that comes too late is given back when this one is dropped.
    twin = os.fdopen(os.dup(file.fileno()), "ab", buffering=0)
    outcome = _Outcome()
    thread = Thread(target=_wait, args=(twin, outcome), name="tl-lock", daemon=True)
    del twin
    try:
        start_all([thread])
    except RuntimeError:  # no thread can be started: the interpreter exits
        return False
    wait((outcome.ended, *stops), PATIENCE_S)
    if outcome.ended.is_set:
        return outcome.locked
    if is_set(stops):
        msg = "the file or its loader was closed while a read waited for another process's"
        raise ClosedError(msg)
    return False


def _wait(file: IO[bytes], outcome: _Outcome) -> None:
    """Wait for the lock: the body of a thread."""
    try:
        _lock(file)
        outcome.locked = True
    except OSError:
        pass
    finally:
        outcome.ended.set()
        file.close()
        file = outcome = DROPPED


if sys.platform == "win32":
    import errno
    import msvcrt

    def _lock_now(file: IO[bytes]) -> bool:
        try:
            file.seek(0)
            msvcrt.locking(file.fileno(), msvcrt.LK_NBLCK, 1)
        except PermissionError:  # another one has it
            return False
        return True

    def _lock(file: IO[bytes]) -> None:
        while True:
            try:
                file.seek(0)
                msvcrt.locking(file.fileno(), msvcrt.LK_LOCK, 1)
            except OSError as error:
                if error.errno != errno.EDEADLOCK:  # that is: not within 10 seconds
                    raise
            else:
                return

    def _unlock(file: IO[bytes]) -> None:
        file.seek(0)
        msvcrt.locking(file.fileno(), msvcrt.LK_UNLCK, 1)

else:
    import fcntl

    def _lock_now(file: IO[bytes]) -> bool:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:  # another one has it
            return False
        return True

    def _lock(file: IO[bytes]) -> None:
        fcntl.flock(file, fcntl.LOCK_EX)

    def _unlock(file: IO[bytes]) -> None:
        fcntl.flock(file, fcntl.LOCK_UN)
