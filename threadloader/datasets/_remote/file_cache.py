"""A folder that keeps blocks of remote files, for other threads, processes and epochs.

A block is a file of its own.  It is written under another name and then moved to its place, so
that no thread or process ever sees half a block.  Of all threads and processes of a node that want
a block, one fetches it; see `_file_lock`.  The blocks that were used least recently make room.  A
folder that can't be written, or a full disk, costs one warning: blocks are then read from the store
each time.
"""

from __future__ import annotations

import os
import tempfile
import time
import warnings
from contextlib import suppress
from copy import deepcopy
from hashlib import blake2b
from pathlib import Path
from threading import TIMEOUT_MAX, Lock
from typing import TYPE_CHECKING, Any

from threadloader._threads.waiting import Stop, stops_here, wait
from threadloader.datasets._file_lock import LOCK, lock_file
from threadloader.errors import ClosedError, ThreadLoaderError

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["FileCache"]

ROOM = 0.9  # blocks are removed down to this part of the bound, so that not each has to make room
# Part of the bound that may be written before the folder is measured again: 8 processes together
# exceed it by an eighth at most.  Measuring 2,560 files (10 GiB) took 9 to 15 ms, while
# 160 MiB are downloaded.
UNMEASURED = 1 / 64
STALE_S = 60.0  # error of the time of a block's last use: setting it at each read would be a write
ABANDONED_S = 3600.0  # age of a partial file, or of a lock's, whose owner must have died
BLOCK, PARTIAL = ".block", ".partial"


class FileCache:
    """Blocks of bytes in a folder, with a bound on their bytes together.

    Args:
        folder: Made if it is not there.
        nbytes: The bound.  If several caches use the folder, in this process or in others, each
            may exceed it by a 64th, or by the blocks that its threads write at once.

    Threads:
        all: shared, also with other processes.
    """

    def __init__(self, folder: str | os.PathLike[str], nbytes: int) -> None:
        self.folder, self.nbytes = Path(folder), nbytes
        # Both have the process in their keys: a forked child has no threads that fetch blocks, and
        # no lock that is sure to be free.  setdefault and pop are atomic on both builds.
        # No key is a Path, whose hash is Python code, which Ctrl-C may end in the middle.
        self._fetched: dict[tuple[int, str], _Fetch] = {}
        self._rooms: dict[int, _Room] = {}

    def __reduce__(self) -> tuple[Any, ...]:
        return FileCache, (self.folder, self.nbytes)

    def read(
        self,
        name: str,
        size: int,
        start: int,
        stop: int,
        fetch: Callable[[], bytes],
        *stops: Stop,
    ) -> bytes:
        """Return a part of a block; fetch the block if it is not there.

        Only one thread of a node fetches a block, and the others wait.  If it fails for good, with
        an error of this package's, it fails for the others of its process, too.  After any other
        error, or if it was stopped, or its process died, one of the others fetches next.

        Args:
            name: Of the block; unique.
            size: Of the block, in bytes.
            start: Of the part in the block.
            stop: Of the part in the block, exclusive.
            fetch: Returns the whole block.
            stops: End a wait for another thread or process; so does the end of the calling worker.

        Raises:
            ClosedError: One of ``stops`` was set meanwhile.
            Exception: From ``fetch``; if another thread fetched, a copy of its error.
        """
        path = self.folder / f"{blake2b(name.encode(), digest_size=20).hexdigest()}{BLOCK}"
        data = _kept(path, size, start, stop)
        while data is None:
            found = self._fetch(path, size, fetch, stops)
            block = found.wait((*stops, *stops_here())) if isinstance(found, _Fetch) else found
            data = None if block is None else block[start:stop]
        return data

    def _fetch(
        self, path: Path, size: int, fetch: Callable[[], bytes], stops: tuple[Stop, ...]
    ) -> bytes | _Fetch:
        """Return a block, or the fetch that another thread has under way."""
        key = os.getpid(), str(path)
        mine = other = _Fetch()
        try:
            other = self._claim(key, mine)
            if other is not mine:
                return other
            mine.block = block = self._fetch_alone(path, size, fetch, stops)
        except ThreadLoaderError as error:
            mine.fail(error)
            raise
        finally:
            # Ctrl-C may come anywhere: right after setdefault, and in here.
            try:
                if self._fetched.get(key) is mine:
                    del self._fetched[key]
            finally:
                mine.ended.set()
                del mine, other  # the error keeps this frame, and they keep the error's cause
        return block

    def _fetch_alone(
        self, path: Path, size: int, fetch: Callable[[], bytes], stops: tuple[Stop, ...]
    ) -> bytes:
        """Return a block: fetch it, or wait for the process that does."""
        block = _kept(path, size, 0, size)  # it may have come a moment ago
        if block is not None:
            return block
        lock = lock_file(path.with_suffix(LOCK), *stops) if self._room().writes else None
        try:
            block = _kept(path, size, 0, size)
            if block is None:
                block = fetch()
                self._keep(path, block)
        finally:
            if lock is not None:
                lock.release()
        return block

    def _room(self) -> _Room:
        pid = os.getpid()
        return self._rooms.get(pid) or self._rooms.setdefault(pid, _Room(self.folder, self.nbytes))

    def _claim(self, key: tuple[int, str], mine: _Fetch) -> _Fetch:
        """Return the fetch that is under way; ``mine`` if there is no other."""
        other = self._fetched.setdefault(key, mine)
        if other.ended.is_set and self._fetched.get(key) is other:
            # Ctrl-C kept its thread from removing it.  If two threads find out at once, both fetch.
            self._fetched[key] = other = mine
        return other

    def _keep(self, path: Path, block: bytes) -> None:
        """Write a block, if that is possible."""
        room = self._room()
        try:
            if room.reserve(len(block)):
                written = False
                try:
                    _write(path, block)
                    written = True
                finally:
                    room.settle(len(block), written=written)
        except OSError as error:
            if room.give_up():
                message = (
                    f"nothing more is kept in the cache folder {self.folder}, since it can't be "
                    f"written ({error}); all else is read from its URL each time"
                )
                warnings.warn(message, RuntimeWarning, stacklevel=2)


class _Fetch:
    """A fetch of a block by one thread, for which others wait.

    Attributes:
        block: None if the fetch failed; set before ``ended``, or never.
        ended: Set last.

    Threads:
        the thread that fetches: ``fail``, and sets the attributes.
        all others: ``wait``.
    """

    __slots__ = ("_error", "block", "ended")

    def __init__(self) -> None:
        self.block: bytes | None = None
        self.ended = Stop()
        self._error: ThreadLoaderError | None = None

    def fail(self, error: ThreadLoaderError) -> None:
        """Let the others fail, too, unless only this thread was stopped."""
        if not isinstance(error, ClosedError):
            # A copy now: the loader of the thread that raises it may add notes later.
            self._error = _copy(error)

    def wait(self, stops: tuple[Stop, ...]) -> bytes | None:
        """Return the block, or None if the calling thread may fetch it.

        Args:
            stops: End the wait.

        Raises:
            ClosedError: One of ``stops`` was set before the fetch ended.
            ThreadLoaderError: A copy of the error of the fetch.
        """
        wait((self.ended, *stops), TIMEOUT_MAX)
        if not self.ended.is_set:
            msg = "the file or its loader was closed while a read waited for another thread's"
            raise ClosedError(msg)
        if self._error is not None:
            raise _copy(self._error)
        return self.block


def _copy(error: ThreadLoaderError) -> ThreadLoaderError:
    """Return an error for another thread, with notes and a traceback of its own."""
    copy = deepcopy(error)
    copy.__cause__ = error.__cause__
    return copy


class _Room:
    """The bytes of the blocks in a folder, and the room for another block.

    Args:
        folder: Of the blocks.
        nbytes: The bound.

    Invariants, whenever ``_changed`` is not held:
        1. ``_used`` bytes are enough for all blocks that were there when the folder was measured,
           and all for which room was reserved then or later, without those that were not written.
        2. ``_used`` is at most ``_nbytes``.
        3. ``_writing`` bytes are reserved and not settled yet.
        4. At most ``_unmeasured`` bytes could be unknown to another cache that measured the folder:
           a 64th of the bound, or ``_writing`` if that is more.

    Threads:
        all: shared.
    """

    def __init__(self, folder: Path, nbytes: int) -> None:
        self._folder, self._nbytes = folder, nbytes
        self._changed = Lock()
        # All below: guarded by _changed.
        self._used = 0  # bytes
        self._writing = 0  # bytes; measuring may miss them, or count them a second time
        self._unmeasured = nbytes  # bytes; at first the folder may hold anything
        self._given_up = False

    @property
    def writes(self) -> bool:
        """Whether blocks are written; only ever becomes False, and is read whole."""
        return not self._given_up

    def reserve(self, nbytes: int) -> bool:
        """Make room for a block by removing others; return whether it may be written.

        If it may, `settle` must follow.

        Raises:
            OSError: The folder can't be made or read.
        """
        with self._changed:
            wanted = self._writing + nbytes
            if self._given_up or wanted > self._nbytes * ROOM:
                return False
            used, unmeasured = self._used + nbytes, self._unmeasured + nbytes
            if used > self._nbytes or unmeasured > self._nbytes * UNMEASURED:
                self._folder.mkdir(parents=True, exist_ok=True)
                used = _shrink(self._folder, self._nbytes, wanted) + wanted
                unmeasured = wanted
            if used > self._nbytes:  # blocks that should make room can't be removed
                return False
            self._used, self._unmeasured, self._writing = used, unmeasured, wanted
            return True

    def settle(self, nbytes: int, *, written: bool) -> None:
        """Note that a block was written, or won't be."""
        with self._changed:
            self._writing -= nbytes
            if not written:
                self._used -= nbytes

    def give_up(self) -> bool:
        """Let nothing more be written; return True the first time."""
        with self._changed:
            before, self._given_up = self._given_up, True
            return not before


def _shrink(folder: Path, bound: int, wanted: int) -> int:
    """Remove the blocks that were used least recently, if needed; return the bytes of the rest."""
    found = []
    now = time.time()
    for entry in os.scandir(folder):
        # Another process removed it; or, on Windows, has it open.
        with suppress(FileNotFoundError, PermissionError):
            status = entry.stat()
            if entry.name.endswith(BLOCK):
                found.append((status.st_mtime, status.st_size, entry.path))
            elif entry.name.endswith((PARTIAL, LOCK)) and now - status.st_mtime > ABANDONED_S:
                Path(entry.path).unlink()
    used = sum(size for _, size, _ in found)
    if used + wanted <= bound:
        return used
    for _, size, path in sorted(found):
        if used + wanted <= bound * ROOM:
            break
        with suppress(PermissionError):  # Windows: a process reads it
            Path(path).unlink(missing_ok=True)
            used -= size
    return used


def _kept(path: Path, size: int, start: int, stop: int) -> bytes | None:
    """Return a part of a block, or None if the block is missing or not whole."""
    try:
        with path.open("rb", buffering=0) as file:
            status = os.fstat(file.fileno())
            if status.st_size != size:
                return None
            file.seek(start)
            data = file.read(stop - start)
        if time.time() - status.st_mtime > STALE_S:
            with suppress(OSError):  # another user's, or removed meanwhile: the data is whole
                os.utime(path)
    except OSError:  # the block is missing, or can't be read
        return None
    return data if len(data) == stop - start else None


def _write(path: Path, block: bytes) -> None:
    """Write a block so that it appears whole, or not at all."""
    descriptor, name = tempfile.mkstemp(PARTIAL, dir=path.parent)
    try:
        with open(descriptor, "wb") as file:  # noqa: PTH123  # of a descriptor
            file.write(block)
        Path(name).replace(path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise
