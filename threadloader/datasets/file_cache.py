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
from concurrent.futures import CancelledError, Future
from contextlib import suppress
from hashlib import blake2b
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Any

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
        nbytes: The bound.  Where several use the folder, in other processes or in this one, each
            may exceed it by a sixteenth.

    Threads:
        all: shared, with other processes, too.
    """

    def __init__(self, folder: str | os.PathLike[str], nbytes: int) -> None:
        self.folder, self.nbytes = Path(folder), nbytes
        # Both by process, since a forked child has neither the threads that fetch blocks nor
        # a lock that is sure to be free.  setdefault and pop are atomic on both builds.
        self._fetched: dict[tuple[int, Path], Future[bytes]] = {}
        self._rooms: dict[int, _Room] = {}

    def __reduce__(self) -> tuple[Any, ...]:
        return FileCache, (self.folder, self.nbytes)

    def read(
        self, name: str, size: int, start: int, stop: int, fetch: Callable[[], bytes]
    ) -> bytes:
        """Return a part of a block, which is fetched if it is not there.

        Of all threads of a process that want a block, one fetches it.

        Args:
            name: Of the block; has all that tells it from others.
            size: Of the block, in bytes.
            start: Of the part in the block.
            stop: Of the part in the block, exclusive.
            fetch: Returns the whole block.

        Raises:
            Exception: Whatever ``fetch`` raises.
        """
        path = self.folder / f"{blake2b(name.encode(), digest_size=20).hexdigest()}{BLOCK}"
        data = _kept(path, size, start, stop)
        if data is not None:
            return data
        mine: Future[bytes] = Future()
        key = os.getpid(), path
        other = self._fetched.setdefault(key, mine)
        if other is mine:
            try:
                block = _kept(path, size, 0, size)  # it may have come a moment ago
                if block is None:
                    block = fetch()
                    self._keep(path, block)
                mine.set_result(block)
            finally:
                del self._fetched[key]
                mine.cancel()  # if there is none: those who wait for it see to it themselves
        else:
            try:
                block = other.result()
            except CancelledError:
                block = fetch()
        return block[start:stop]

    def _keep(self, path: Path, block: bytes) -> None:
        """Write a block, if that can be done."""
        pid = os.getpid()
        room = self._rooms.get(pid) or self._rooms.setdefault(pid, _Room(self.folder, self.nbytes))
        try:
            if room.make(len(block)):
                _write(path, block)
        except OSError as error:
            if room.give_up():
                message = (
                    f"nothing more is kept in the cache folder {self.folder}, since it can't be "
                    f"written ({error}); all else is read from its URL each time"
                )
                warnings.warn(message, RuntimeWarning, stacklevel=2)


class _Room:
    """What blocks take in a folder, and whether there is room for another.

    Args:
        folder: Where they are.
        nbytes: The bound.

    Invariants, whenever ``_measuring`` is not held:
        1. What was written since the folder was measured is counted in ``_used``, and at most a
           sixteenth of the bound.

    Threads:
        all: shared.
    """

    def __init__(self, folder: Path, nbytes: int) -> None:
        self._folder, self._nbytes = folder, nbytes
        self._measuring = Lock()
        # All below: guarded by _measuring.
        self._used = 0  # bytes
        self._unmeasured = nbytes  # bytes; at first, anything may be there
        self._given_up = False

    def make(self, nbytes: int) -> bool:
        """Make room for a block, removing others; return whether it may be written.

        Raises:
            OSError: The folder can't be made or read.
        """
        with self._measuring:
            if self._given_up or nbytes > self._nbytes * ROOM:
                return False
            self._unmeasured += nbytes
            if self._used + nbytes > self._nbytes or self._unmeasured > self._nbytes * UNMEASURED:
                self._folder.mkdir(parents=True, exist_ok=True)
                self._used = _shrink(self._folder, self._nbytes, nbytes)
                self._unmeasured = nbytes
            self._used += nbytes
            return True

    def give_up(self) -> bool:
        """Let nothing more be written; return whether it was, until now."""
        with self._measuring:
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
