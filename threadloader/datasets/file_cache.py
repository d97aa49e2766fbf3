"""A folder that keeps blocks of remote files, for other threads, processes and epochs.

A block is a file of its own.  It is written under another name and moved to its place, so that
nobody, in this process or another, ever sees half of one; those that were used least recently
make room.  A folder that can't be written, or a full disk, costs a warning and no more: what was
to be kept is read from afar again.
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

from threadloader._threads.stopping import Stop, stops_here, wait
from threadloader.errors import ClosedError, ThreadLoaderError

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["FileCache"]

ROOM = 0.9  # of the bound is what is left of the rest, so that not every block has to make room
UNMEASURED = 1 / 16  # of the bound may be written before the folder is measured again
STALE_S = 60.0  # how old the time of a block's last use may be: to set it at each read is a write
ABANDONED_S = 3600.0  # the age of a file that is not whole yet and whose writer must have died
BLOCK, PARTIAL = ".block", ".partial"


class FileCache:
    """Blocks of bytes in a folder, with a bound on what they take together.

    Args:
        folder: Made if it is not there.
        nbytes: The bound.  Where several caches use the folder, in other processes or in this
            one, each may exceed it by a sixteenth, or by the blocks that its threads write at once.

    Threads:
        all: shared, with other processes, too.
    """

    def __init__(self, folder: str | os.PathLike[str], nbytes: int) -> None:
        self.folder, self.nbytes = Path(folder), nbytes
        # Both by process, since a forked child has neither the threads that fetch blocks nor
        # a lock that is sure to be free.  setdefault and pop are atomic on both builds.
        # Not by Path, whose hash is Python code, which Ctrl-C may end in the middle.
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
        """Return a part of a block, which is fetched if it is not there.

        Of all threads of a process that want a block, one fetches it.  If it fails for good, with
        an error of this package's, it fails for those who wait for it, too; else, if it is
        stopped, say, one of them fetches next.

        Args:
            name: Of the block; has all that tells it from others.
            size: Of the block, in bytes.
            start: Of the part in the block.
            stop: Of the part in the block, exclusive.
            fetch: Returns the whole block.
            stops: What ends waiting for another thread, besides the end of the calling worker.

        Raises:
            ClosedError: One of ``stops`` was set meanwhile.
            Exception: Whatever ``fetch`` raises; of another thread's error a copy.
        """
        path = self.folder / f"{blake2b(name.encode(), digest_size=20).hexdigest()}{BLOCK}"
        data = _kept(path, size, start, stop)
        while data is None:
            found = self._fetch(path, size, fetch)
            block = found.wait((*stops, *stops_here())) if isinstance(found, _Fetch) else found
            data = None if block is None else block[start:stop]
        return data

    def _fetch(self, path: Path, size: int, fetch: Callable[[], bytes]) -> bytes | _Fetch:
        """Return a block, or the fetch of another thread that is under way."""
        key = os.getpid(), str(path)
        mine = other = _Fetch()
        try:
            other = self._claim(key, mine)
            if other is not mine:
                return other
            block = _kept(path, size, 0, size)  # it may have come a moment ago
            if block is None:
                block = fetch()
                self._keep(path, block)
            mine.block = block
        except ThreadLoaderError as error:
            mine.fail(error)
            raise
        finally:
            # Ctrl-C may come anywhere, right after setdefault and in here, too.
            try:
                if self._fetched.get(key) is mine:
                    del self._fetched[key]
            finally:
                mine.ended.set()
                del mine, other  # this frame stays with the error, and they have its cause
        return block

    def _claim(self, key: tuple[int, str], mine: _Fetch) -> _Fetch:
        """Return the fetch that is under way: ``mine`` if there was none."""
        other = self._fetched.setdefault(key, mine)
        if other.ended.is_set and self._fetched.get(key) is other:
            # Ctrl-C kept its thread from taking it away.  Should two find out at once, both fetch.
            self._fetched[key] = other = mine
        return other

    def _keep(self, path: Path, block: bytes) -> None:
        """Write a block, if that can be done."""
        pid = os.getpid()
        room = self._rooms.get(pid) or self._rooms.setdefault(pid, _Room(self.folder, self.nbytes))
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
    """A thread's fetch of a block, for which others wait.

    Attributes:
        block: None if it failed; set before ``ended``, or never.
        ended: Set last.

    Threads:
        who fetches: ``fail``, and sets what is set.
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
            # As it is now: the loader of the thread that has it may add notes any time later.
            self._error = _copy(error)

    def wait(self, stops: tuple[Stop, ...]) -> bytes | None:
        """Return the block, or None if the calling thread may try it.

        Args:
            stops: What ends the waiting.

        Raises:
            ClosedError: One of ``stops`` was set before the fetch ended.
            ThreadLoaderError: A copy of the error that it failed with.
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
    """What blocks take in a folder, and whether there is room for another.

    Args:
        folder: Where they are.
        nbytes: The bound.

    Invariants, whenever ``_changed`` is not held:
        1. The blocks that were there when the folder was measured, and all for which room was
           reserved then or later and that were not given up, take at most ``_used``.
        2. ``_used`` is at most ``_nbytes``.
        3. What was reserved and not settled is ``_writing``.
        4. What no other cache could know of when it measured the folder is at most ``_unmeasured``:
           a sixteenth of the bound, or ``_writing`` if that is more.

    Threads:
        all: shared.
    """

    def __init__(self, folder: Path, nbytes: int) -> None:
        self._folder, self._nbytes = folder, nbytes
        self._changed = Lock()
        # All below: guarded by _changed.
        self._used = 0  # bytes
        self._writing = 0  # bytes; no measuring finds them, or it finds them a second time
        self._unmeasured = nbytes  # bytes; at first, anything may be there
        self._given_up = False

    def reserve(self, nbytes: int) -> bool:
        """Make room for a block, removing others; return whether it may be written.

        If so, `settle` must follow.

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
            if used > self._nbytes:  # what should have made room can't be removed
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
        """Let nothing more be written; return whether it was, until now."""
        with self._changed:
            before, self._given_up = self._given_up, True
            return not before


def _shrink(folder: Path, bound: int, wanted: int) -> int:
    """Remove the blocks used least recently if there is no room; return the bytes of the rest."""
    found = []
    now = time.time()
    for entry in os.scandir(folder):
        with suppress(FileNotFoundError):  # another process was faster
            status = entry.stat()
            if entry.name.endswith(BLOCK):
                found.append((status.st_mtime, status.st_size, entry.path))
            elif entry.name.endswith(PARTIAL) and now - status.st_mtime > ABANDONED_S:
                Path(entry.path).unlink()
    used = sum(size for _, size, _ in found)
    if used + wanted <= bound:
        return used
    for _, size, path in sorted(found):
        if used + wanted <= bound * ROOM:
            break
        with suppress(PermissionError):  # Windows: somebody reads it
            Path(path).unlink(missing_ok=True)
            used -= size
    return used


def _kept(path: Path, size: int, start: int, stop: int) -> bytes | None:
    """Return a part of a block, or None if it is not there as a whole."""
    try:
        with path.open("rb", buffering=0) as file:
            status = os.fstat(file.fileno())
            if status.st_size != size:
                return None
            file.seek(start)
            data = file.read(stop - start)
        if time.time() - status.st_mtime > STALE_S:
            with suppress(OSError):  # another's, or removed meanwhile: what was read is whole
                os.utime(path)
    except OSError:  # it is not there, or no longer, or can't be read
        return None
    return data if len(data) == stop - start else None


def _write(path: Path, block: bytes) -> None:
    """Write a block so that it is there as a whole, or not at all."""
    descriptor, name = tempfile.mkstemp(PARTIAL, dir=path.parent)
    try:
        with open(descriptor, "wb") as file:  # noqa: PTH123  # of a descriptor
            file.write(block)
        Path(name).replace(path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise
