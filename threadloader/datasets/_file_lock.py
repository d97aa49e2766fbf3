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
from typing import TYPE_CHECKING
from uuid import uuid4

from threadloader._lifetime.dropping import DROPPED
from threadloader._threads.starting import start_all
from threadloader._threads.waiting import Stop, is_set, stops_here, wait
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
        path: Of the file; opened here, and locked by `lock_file`.

    Raises:
        OSError: The file can't be opened.

    Threads:
        all: compatible; ``release`` also from finalizers.
    """

    # No file object: one that is dropped before it is closed warns, and the collector may drop it
    # before this.
    __slots__ = ("_locked", "_number", "_path", "_pid")

    def __init__(self, path: Path) -> None:
        self._path, self._pid = path, os.getpid()
        self._locked = False
        self._number = -1  # if opening fails
        self._number = _opened(path)

    def __del__(self) -> None:
        try:  # noqa: SIM105  # at the interpreter's exit modules may be gone, `suppress` too
            self.release()
        except Exception:  # noqa: BLE001, S110
            pass

    def acquire(self, stops: tuple[Stop, ...], *, waits: bool) -> bool:
        """Lock the file; return whether it is locked, and still the one at its path.

        Raises:
            ClosedError: One of ``stops`` was set meanwhile.
            OSError: The file system has no locks.
        """
        self._locked = _lock_now(self._number) or (waits and _lock_later(self._number, stops))
        return self._locked

    def is_in_place(self) -> bool:
        """Whether the file is still at its path, and no other was put there."""
        try:
            return os.path.samestat(os.fstat(self._number), self._path.stat())
        except FileNotFoundError:
            return False

    def release(self) -> None:
        """Let another one have the lock.  Idempotent."""
        number, self._number = self._number, -1
        if number < 0:
            return
        own = self._locked and self._pid == os.getpid()
        try:
            if own:
                # Before the lock is given back: another one could have it then.
                self._remove(number)
                _unlock(number)  # closing is not enough: a forked child has the file, too
        except OSError:
            pass
        finally:
            os.close(number)
        if own and os.name != "posix":  # Windows removes no file that is open, here or elsewhere
            with suppress(OSError):
                self._path.unlink(missing_ok=True)

    def _remove(self, number: int) -> None:
        with suppress(OSError):
            if os.name == "posix" and os.path.samestat(os.fstat(number), self._path.stat()):
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
            lock = FileLock(path)
        except OSError:  # the folder can't be written
            return None
        kept = False
        try:
            if not lock.acquire((*stops, *stops_here()), waits=waits):
                return None
            kept = lock.is_in_place()
            if kept:
                return lock
        except OSError:  # the file system has no locks
            return None
        finally:
            if not kept:
                lock.release()


def has_locks(folder: Path) -> bool:
    """Whether files in a folder can be locked."""
    lock = lock_file(folder / f"{uuid4().hex}{LOCK}", waits=False)
    if lock is not None:
        lock.release()
    return lock is not None


def _opened(path: Path) -> int:
    flags = os.O_RDWR | os.O_CREAT | getattr(os, "O_BINARY", 0)
    try:
        return os.open(path, flags, 0o666)
    except FileNotFoundError:
        path.parent.mkdir(parents=True, exist_ok=True)
        return os.open(path, flags, 0o666)


class _Outcome:
    """What became of a wait for a lock: set by the waiting thread, ``ended`` last."""

    __slots__ = ("ended", "locked")

    def __init__(self) -> None:
        self.locked = False
        self.ended = Stop()


def _lock_later(number: int, stops: tuple[Stop, ...]) -> bool:
    """Wait for the lock of a file; return whether it was had.

    A call of the operating system that waits can't be stopped, so a thread of its own makes it.

    Raises:
        ClosedError: One of ``stops`` was set meanwhile.
    """
    # A descriptor of its own, with the same lock: closing the caller's would not end the call, and
    # a lock that comes too late is given back when this one is closed.
    twin = os.dup(number)
    outcome = _Outcome()
    thread = Thread(target=_wait, args=(twin, outcome), name="tl-lock", daemon=True)
    try:
        start_all([thread])
    except RuntimeError:  # no thread can be started: the interpreter exits
        os.close(twin)
        return False
    wait((outcome.ended, *stops), PATIENCE_S)
    if outcome.ended.is_set:
        return outcome.locked
    if is_set(stops):
        msg = "the file or its loader was closed while a read waited for another process's"
        raise ClosedError(msg)
    return False


def _wait(number: int, outcome: _Outcome) -> None:
    """Wait for the lock: the body of a thread."""
    try:
        _lock(number)
        outcome.locked = True
    except OSError:
        pass
    finally:
        # In this order: whoever is told has a descriptor of the lock, too.
        outcome.ended.set()
        os.close(number)
        outcome = DROPPED


if sys.platform == "win32":
    import errno
    import msvcrt

    def _lock_now(number: int) -> bool:
        try:
            os.lseek(number, 0, os.SEEK_SET)
            msvcrt.locking(number, msvcrt.LK_NBLCK, 1)
        except PermissionError:  # another one has it
            return False
        return True

    def _lock(number: int) -> None:
        while True:
            try:
                os.lseek(number, 0, os.SEEK_SET)
                msvcrt.locking(number, msvcrt.LK_LOCK, 1)
            except OSError as error:
                if error.errno != errno.EDEADLOCK:  # that is: not within 10 seconds
                    raise
            else:
                return

    def _unlock(number: int) -> None:
        os.lseek(number, 0, os.SEEK_SET)
        msvcrt.locking(number, msvcrt.LK_UNLCK, 1)

else:
    import fcntl

    def _lock_now(number: int) -> bool:
        try:
            fcntl.flock(number, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:  # another one has it
            return False
        return True

    def _lock(number: int) -> None:
        fcntl.flock(number, fcntl.LOCK_EX)

    def _unlock(number: int) -> None:
        fcntl.flock(number, fcntl.LOCK_UN)
