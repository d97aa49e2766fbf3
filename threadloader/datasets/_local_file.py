"""Files of a file system here, read at any offset by all threads, and not too many open at once."""

from __future__ import annotations

import copy
import errno
import io
import os
import stat
import sys
from collections import deque
from pathlib import Path
from threading import Lock
from typing import IO, TYPE_CHECKING, Any, BinaryIO, cast
from uuid import uuid4
from weakref import ref

from threadloader.errors import DataError

if sys.platform != "win32":
    import resource

if TYPE_CHECKING:
    from collections.abc import Callable

    from typing_extensions import Buffer


_BUFFER = 128 << 10  # bytes of a stream
MOST_OPEN = 256  # files of a dataset, whatever the process may have open
PARTIAL = ".partial"  # the ending of a file that is being written


class Shelf:
    """A bound on the open files of a dataset: the file that was opened first is closed first.

    A quarter of the files that the process may have open (`ulimit -n`) is the most: there are other
    datasets, and connections.

    Threads:
        all: shared; adding to a deque and taking from it are atomic on both builds.
    """

    def __init__(self) -> None:
        self._files: deque[ref[LocalFile]] = deque()  # weak: or they outlive their dataset

    def __reduce__(self) -> tuple[Any, ...]:
        return Shelf, ()

    def opened(self, file: LocalFile) -> None:
        """Count a file that was opened, and close others if there are too many."""
        self._files.append(ref(file))
        self.close(min(MOST_OPEN, _open_limit() // 4))

    def close(self, most: int = 0) -> None:
        """Close files until at most so many are open."""
        while len(self._files) > most:
            try:
                other = self._files.popleft()()
            except IndexError:  # others closed them
                return
            if other is not None:
                other.close()


class LocalFile:
    """A file in a file system.

    Its stamp is compared after each read, and at the end of a stream: after and not before, so that
    bytes of another version are never taken for the expected one's.

    Args:
        path: Its path.
        shelf: Bounds the open files of a dataset.

    Threads:
        expect: compatible; before others read.
        all else: shared.  A read holds its own reference to the descriptor, so `close` never takes
        it away.  There is no lock, which a forked child could find held: storing and loading an
        attribute is atomic on both builds.  If two threads open the file at once, one descriptor
        is dropped.
    """

    def __init__(self, path: str | os.PathLike[str], shelf: Shelf) -> None:
        self.path = os.fspath(path)
        self._shelf = shelf
        self._expected: str | None = None  # the stamp of the version to be read
        self._descriptor: Descriptor | None = None

    def __reduce__(self) -> tuple[Any, ...]:
        # A copy in another process opens it itself.
        return LocalFile, (self.path, self._shelf), self._expected

    def __setstate__(self, expected: str) -> None:
        self._expected = expected

    def size(self) -> int:
        """Return its size in bytes."""
        return Path(self.path).stat().st_size

    def stamp(self) -> str:
        """Return its size and the time of its last change."""
        return _stamp_of(Path(self.path).stat())

    def expect(self, stamp: str) -> None:
        """Read only the version that has this stamp; see `threadloader.datasets._files.File`."""
        self._expected = stamp
        self._descriptor = None  # it may be of another version

    def read_at(self, offset: int, nbytes: int) -> bytes:
        """Return exactly ``nbytes`` bytes from ``offset`` on; see `File`."""
        descriptor = self._descriptor or self._open()
        data = descriptor.read_at(offset, nbytes)
        if len(data) < nbytes:  # after a signal, or beyond 2 GiB
            parts = [data]
            while data and (missing := nbytes - sum(map(len, parts))):
                data = descriptor.read_at(offset + nbytes - missing, missing)
                parts.append(data)
            data = b"".join(parts)
        self.check(descriptor.number)
        if len(data) < nbytes:
            size = offset + len(data)
            msg = f"the file ends at {size:,}, and {nbytes:,} bytes were to be read: truncated?"
            raise DataError(msg, self.path, offset=offset)
        return data

    def open(self) -> BinaryIO:
        """Return a stream from the beginning; see `File`.

        Of a pipe, or a file that says that it is empty, as those of ``/proc``, all that comes.
        """
        status = os.stat(self.path)  # noqa: PTH116  # of the same module as the descriptor's
        whole = stat.S_ISREG(status.st_mode) and status.st_size
        if not whole and (self._expected or "0-").startswith("0-"):
            return open(self.path, "rb", _BUFFER)  # noqa: PTH123
        twin = copy.copy(self)  # whose descriptor lives as long as the stream
        size = twin.check(twin._open().number)  # noqa: SLF001  # a copy of this
        return cast("BinaryIO", io.BufferedReader(SeekableFile(twin.read_at, size), _BUFFER))

    def close(self) -> None:
        """Drop the descriptor; it is closed when the last read that uses it ends."""
        self._descriptor = None

    def _open(self) -> Descriptor:
        try:
            descriptor = Descriptor(self.path)
        except OSError as error:
            if error.errno not in {errno.EMFILE, errno.ENFILE}:
                raise
            self._shelf.close()  # something else has many: better none of ours than an error
            descriptor = Descriptor(self.path)
        if self._expected is None:
            self._expected = _stamp_of(os.fstat(descriptor.number))
        self._descriptor = descriptor
        self._shelf.opened(self)
        return descriptor

    def check(self, number: int) -> int:
        """Return the size of an open file.

        Args:
            number: Its descriptor.

        Raises:
            DataError: It is not the version that is to be read.
        """
        status, expected = os.fstat(number), self._expected
        found = _stamp_of(status)
        if expected is not None and found != expected:
            msg = (
                f"the file changed while it was in use ({expected}, now {found}); "
                "make its dataset anew to read the new one"
            )
            raise DataError(msg, self.path)
        return status.st_size


class SeekableFile(io.RawIOBase):
    """A file as a raw stream, for libraries that look for what they need in it.

    Args:
        read_at: Takes an offset and a number of bytes, returns these bytes.
        size: Of the file, in bytes.

    Threads:
        all: one thread.
    """

    def __init__(self, read_at: Callable[[int, int], bytes], size: int) -> None:
        super().__init__()
        self._read_at, self._size, self._at = read_at, size, 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = os.SEEK_SET, /) -> int:
        self._at = (0, self._at, self._size)[whence] + offset
        return self._at

    def readinto(self, buffer: Buffer, /) -> int:
        target = memoryview(buffer).cast("B")
        count = max(0, min(len(target), self._size - self._at))
        target[:count] = self._read_at(self._at, count)
        self._at += count
        return count

    def close(self) -> None:
        if not self.closed:
            del self._read_at  # and with it the file
        super().close()


class Descriptor:
    """An open file, read at any offset; closed when nobody refers to it any more.

    Invariants:
        1. Without `os.pread` (Windows), only the holder of ``_seeking`` moves the position.

    Threads:
        read_at: shared.
    """

    def __init__(self, path: str) -> None:
        self.number = -1  # if opening fails
        # Without waiting: what lies there may be a pipe, which is no file that can be read.
        flags = getattr(os, "O_BINARY", 0) | getattr(os, "O_NONBLOCK", 0)
        self.number = os.open(path, os.O_RDONLY | flags)
        self._seeking = Lock()  # the descriptor's position, without pread: guarded by _seeking

    def __del__(self, close: Callable[[int], None] = os.close) -> None:
        # `close` is an argument because `os` may be gone at the interpreter's exit.
        if self.number >= 0:
            close(self.number)

    if hasattr(os, "pread"):

        def read_at(self, offset: int, nbytes: int) -> bytes:
            return os.pread(self.number, nbytes, offset)
    else:

        def read_at(self, offset: int, nbytes: int) -> bytes:
            with self._seeking:
                os.lseek(self.number, offset, os.SEEK_SET)
                return os.read(self.number, nbytes)


def _open_limit() -> int:
    """Return how many files this process may have open."""
    if sys.platform == "win32":
        return 512
    soft = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return soft if soft != resource.RLIM_INFINITY else sys.maxsize


def _stamp_of(status: os.stat_result) -> str:
    return f"{status.st_size}-{status.st_mtime_ns}"


def write_whole(path: Path, content: bytes) -> None:
    """Write a file so that it appears whole, or not at all; its folder is made, too.

    It is not flushed to the disk: after a power failure it may be damaged, and whoever reads it
    finds that out by what is in it.

    Raises:
        OSError: It can't be written.
    """
    partial = path.with_name(f".{uuid4().hex}{PARTIAL}")
    try:
        with made(partial, "xb") as file:
            file.write(content)
        partial.replace(path)
    except BaseException:
        partial.unlink(missing_ok=True)
        raise


def made(path: Path, mode: str) -> IO[bytes]:
    """Return a new file, whose folder is made, too."""
    try:
        return path.open(mode)
    except FileNotFoundError:
        path.parent.mkdir(parents=True, exist_ok=True)
        return path.open(mode)
