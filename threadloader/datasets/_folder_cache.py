"""A folder of files that appear whole, for all threads and processes of a node.

    found = cache.read(name)           # None: nobody has made it
    with cache.making(name):           # one makes it, and the others wait here
        found = cache.read(name) or ...
        cache.write(name, content)     # under another name, and then moved to its place

Of all threads and processes that want a file, one makes it.  That saves work and guards nothing:
whoever can't have the lock goes on without it, where the folder can't be written, where the file
system has no locks, and where the holder is stopped for a minute.  The locks are the operating
system's, so they end with their process, however it dies.  There is a fixed number of them, by
names, so that none has to be removed; whoever needs the same lock for another file waits in vain.

A folder that can't be written, or a full disk, costs one warning: nothing more is written then.
"""

from __future__ import annotations

import os
import sys
import time
import warnings
from contextlib import contextmanager, suppress
from hashlib import blake2b
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Any

from threadloader._authors import Stop, stops_here, wait
from threadloader.datasets._local_file import PARTIAL, Descriptor, made, write_whole
from threadloader.errors import ClosedError

if sys.platform != "win32":
    import fcntl

if TYPE_CHECKING:
    from collections.abc import Iterator


KEPT, LOCK = ".kept", ".lock"
ROOM = 0.9  # files are removed down to this part of the bound, so that not each has to make room
# Part of the bound that may be written before the folder is measured again: 8 processes together
# exceed it by an eighth at most.  Measuring 2,560 files took 9 to 15 ms.
UNMEASURED = 1 / 64
STALE_S = 60.0  # error of the time of a file's last use: setting it at each read would be a write
ABANDONED_S = 3600.0  # age of a partial file whose writer must have died
PATIENCE_S = 60.0  # for a holder that lives and does not go on: stopped in a debugger, say
# Between two looks at a lock, in seconds: no call waits for a lock and for a flag.
SHORTEST_S, LONGEST_S = 0.001, 0.05


class FolderCache:
    """Files of bytes in a folder, with a bound on their bytes together.

    Args:
        folder: Made when the first file is written.
        nbytes: The bound.  Each process may exceed it by a 64th, or by the files that its threads
            write at once.
        makes_room: Whether files that were used least recently are removed for others; if not,
            nothing more is written once the bound is reached.

    Threads:
        all: shared, also with other processes.
    """

    def __init__(
        self, folder: str | os.PathLike[str], nbytes: int, *, makes_room: bool = True
    ) -> None:
        self.folder, self.nbytes, self.makes_room = Path(folder), nbytes, makes_room
        # Bytes that were written since the folder was measured; at first it may hold anything.  No
        # lock: two threads that add at once may count the bytes of one.
        self._unmeasured = nbytes
        self._given_up = False  # only ever becomes True

    def __getstate__(self) -> dict[str, Any]:
        return vars(self) | {"_unmeasured": self.nbytes, "_given_up": False}

    def read(self, name: str, start: int = 0, stop: int | None = None) -> bytes | None:
        """Return a part of a file, up to its end if it is shorter; None if it is not there."""
        path = self._path(name)
        try:
            file = Descriptor(path)
            status = os.fstat(file.number)
            data = file.read_at(start, (status.st_size if stop is None else stop) - start)
            if self.makes_room and time.time() - status.st_mtime > STALE_S:
                with suppress(PermissionError):  # another user's
                    os.utime(path)
        except OSError:
            return None
        return data

    @contextmanager
    def making(self, name: str, *stops: Stop) -> Iterator[None]:
        """Have the lock of a file, if that is possible; wait for who has it.

        Args:
            name: Of the file.
            stops: End the wait; so does the end of the calling worker.

        Raises:
            ClosedError: One of ``stops`` was set meanwhile.
        """
        path = self.folder / f"{_digest(name)[:2]}{LOCK}"
        file = None
        if sys.platform != "win32" and not self._given_up:
            with suppress(OSError):  # the folder can't be written
                file = made(path, "ab")
        if file is None:
            yield
            return
        with file:
            locked = _lock(file.fileno(), (*stops, *stops_here()))
            try:
                yield
            finally:
                if locked:  # closing is not enough: a forked child has the file, too
                    fcntl.flock(file.fileno(), fcntl.LOCK_UN)

    def write(self, name: str, content: bytes) -> None:
        """Keep a file, if that is possible; warn once if it is not."""
        if self._given_up or len(content) > self.nbytes * ROOM:
            return
        reason = ""
        try:
            if self._has_room(len(content)):
                write_whole(Path(self._path(name)), content)
            elif not self.makes_room:
                reason = f"it holds {self.nbytes:,} bytes, the bound"
        except OSError as error:
            reason = f"it can't be written ({error})"
        if reason and not self._given_up:
            self._given_up = True
            message = (
                f"nothing more is kept in the cache folder {self.folder}, since {reason}; all else "
                "is loaded each time"
            )
            warnings.warn(message, RuntimeWarning, stacklevel=2)

    def _path(self, name: str) -> str:
        digest = _digest(name)
        return f"{self.folder}{os.sep}{digest[:2]}{os.sep}{digest[2:]}{KEPT}"

    def _has_room(self, wanted: int) -> bool:
        """Return whether there is room, which is made if it may be; at times by measuring."""
        self._unmeasured += wanted
        if self._unmeasured <= self.nbytes * UNMEASURED:
            return True
        self._unmeasured = wanted
        found = self._files()
        used = sum(size for _, size, _ in found)
        if self.makes_room and used + wanted > self.nbytes:
            for _, size, path in sorted(found):
                if used + wanted <= self.nbytes * ROOM:
                    break
                with suppress(PermissionError):  # Windows: a process reads it
                    path.unlink(missing_ok=True)
                    used -= size
        return used + wanted <= self.nbytes

    def _files(self) -> list[tuple[float, int, Path]]:
        """Return time, size and path of all files; remove what processes that died left behind."""
        self.folder.mkdir(parents=True, exist_ok=True)
        found, now = [], time.time()
        folders = [folder for folder in os.scandir(self.folder) if len(folder.name) == 2]
        for folder in folders:
            for entry in os.scandir(folder):
                with suppress(FileNotFoundError):  # another process removed it
                    status = entry.stat()
                    if entry.name.endswith(KEPT):
                        found.append((status.st_mtime, status.st_size, Path(entry.path)))
                    elif entry.name.endswith(PARTIAL) and now - status.st_mtime > ABANDONED_S:
                        Path(entry.path).unlink()
        return found


def _digest(name: str) -> str:
    return blake2b(name.encode(), digest_size=20).hexdigest()


def _lock(number: int, stops: tuple[Stop, ...]) -> bool:
    """Lock a file; return False if another one has the lock for too long, or there are no locks.

    Raises:
        ClosedError: One of ``stops`` was set meanwhile.
    """
    seconds, until = SHORTEST_S, monotonic() + PATIENCE_S
    try:
        while not _lock_now(number):
            if wait(stops, seconds):
                msg = "the file or its loader was closed while a read waited for another one's"
                raise ClosedError(msg)
            if monotonic() > until:
                return False
            seconds = min(2 * seconds, LONGEST_S)
    except OSError:
        return False
    return True


def _lock_now(number: int) -> bool:
    try:
        fcntl.flock(number, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:  # another one has it
        return False
    return True
