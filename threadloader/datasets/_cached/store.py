"""A folder of records, which all processes of a node fill and read at once.

    places           one entry of 16 bytes for each sample: where its record is, or nothing yet
    00000.records    records, appended by one process at a time

A record is written before its place, and says itself whether it is whole.  So a process that is
killed at any moment leaves whole records, and bytes that no place leads to.  No record is ever
overwritten, and nobody waits to read.
"""

from __future__ import annotations

import os
import struct
import warnings
from threading import Lock
from typing import TYPE_CHECKING, Any

from threadloader.datasets._cached.record import ALIGNED
from threadloader.datasets._file_lock import LOCK, FileLock, has_locks, lock_file
from threadloader.datasets._files import Descriptor

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from threadloader._threads.waiting import Stop

__all__ = ["RecordStore"]

MEASURED = 16 << 20  # bytes that a process writes before it measures the folder again
RECORDS = ".records"
_PLACE = struct.Struct("<QQ")  # of the file 16 bits, of the offset / 16 + 1 48 bits; bytes
_OFFSET_BITS = 48
_MOST_FILES = 1 << 16


class RecordStore:
    """Records by index, in a folder.

    Args:
        folder: Made when the first record is written.
        nbytes: Bound on the records; each process may exceed it by 16 MiB.

    Threads:
        all: shared, also with other processes.
    """

    def __init__(self, folder: Path, nbytes: int) -> None:
        self.folder, self.nbytes = folder, nbytes
        # By process: a forked child writes to a file of its own, with a lock that is free.  No
        # lock for these: setdefault and storing are atomic on both builds.
        self._writers: dict[int, _Writer] = {}
        self._files: dict[str, Descriptor] = {}

    def __reduce__(self) -> tuple[Any, ...]:
        return RecordStore, (self.folder, self.nbytes)

    @property
    def writes(self) -> bool:
        """Whether this process still writes records."""
        return self._writer().writes

    def read(self, index: int) -> bytes | None:
        """Return the bytes at a sample's place, which may be no record; None if there are none."""
        try:
            found = self._file("places").read_at(index * _PLACE.size, _PLACE.size)
            if len(found) < _PLACE.size:  # the file ends before it
                return None
            where, nbytes = _PLACE.unpack(found)
            if not where:
                return None
            number, block = where >> _OFFSET_BITS, where & (1 << _OFFSET_BITS) - 1
            file = self._file(_name(number))
            return file.read_at((block - 1) * ALIGNED, nbytes)
        except (OSError, OverflowError, MemoryError):  # not there yet, or an entry half written
            return None

    def write(self, index: int, record: bytes) -> None:
        """Keep a record, if that is possible; warn once if it is not."""
        self._writer().write(index, record)

    def lock(self, index: int, *stops: Stop) -> FileLock | None:
        """Return the lock of a sample; None if it can't be had, or would be of no use.

        Raises:
            ClosedError: One of ``stops`` was set meanwhile.
        """
        return lock_file(self.folder / f"{index}{LOCK}", *stops) if self.writes else None

    def _file(self, name: str) -> Descriptor:
        file = self._files.get(name)
        if file is None:
            # If two threads open it at once, one descriptor is dropped.
            file = self._files[name] = Descriptor(str(self.folder / name))
        return file

    def _writer(self) -> _Writer:
        pid = os.getpid()
        return self._writers.get(pid) or self._writers.setdefault(
            pid, _Writer(self.folder, self.nbytes)
        )


class _Writer:
    """What one process writes.

    Args:
        folder: Of the store.
        nbytes: The bound.

    Invariants, whenever ``_changed`` is not held:
        1. No record of another process or thread is at ``_end`` of the file, or after it.

    Threads:
        all: shared.
    """

    def __init__(self, folder: Path, nbytes: int) -> None:
        self._folder, self._nbytes = folder, nbytes
        self.writes = True  # only ever becomes False
        self._changed = Lock()
        # All below: guarded by _changed.
        self._places = _Written()
        self._records = _Written()
        self._lock: FileLock | None = None  # of the file of records, for as long as this lives
        self._number = -1  # of that file
        self._end = 0
        self._unmeasured = MEASURED  # bytes that were written since the folder was measured

    def write(self, index: int, record: bytes) -> None:
        """Keep a record; see `RecordStore.write`."""
        if not self.writes:
            return
        reason = ""
        try:
            offset = self._reserve(len(record))
            if offset is None:
                reason = f"it holds {self._nbytes:,} bytes, the bound"
            else:
                self._records.write_at(offset, record)
                where = self._number << _OFFSET_BITS | (offset // ALIGNED + 1)
                self._places.write_at(index * _PLACE.size, _PLACE.pack(where, len(record)))
        except OSError as error:
            reason = f"it can't be written ({error})"
        if reason and self._give_up():
            message = (
                f"nothing more is kept in the cache folder {self._folder}, since {reason}; all "
                "else is loaded each time"
            )
            warnings.warn(message, RuntimeWarning, stacklevel=2)

    def _reserve(self, nbytes: int) -> int | None:
        """Return the offset for a record; None if there is no room.

        Raises:
            OSError: The folder can't be written.
        """
        with self._changed:
            if self._number < 0:
                self._open()
            size = -(-nbytes // ALIGNED) * ALIGNED
            if self._unmeasured + size > MEASURED:
                if _bytes_in(self._folder) + size > self._nbytes:
                    return None
                self._unmeasured = 0
            self._unmeasured += size
            offset, self._end = self._end, self._end + size
            return offset

    def _open(self) -> None:
        """Go on with a file of records that a process left, or begin one."""
        self._folder.mkdir(parents=True, exist_ok=True)
        self._places.open(self._folder / "places")
        locks = has_locks(self._folder)
        for number in range(_MOST_FILES):
            path = self._folder / _name(number)
            if self._has(path, locks=locks):
                self._end = -(-path.stat().st_size // ALIGNED) * ALIGNED
                self._number = number
                return
        msg = f"the folder has {_MOST_FILES:,} files of records"
        raise OSError(msg)

    def _has(self, path: Path, *, locks: bool) -> bool:
        """Open a file of records; return False if another process writes to it."""
        if locks:
            self._lock = lock_file(path.with_suffix(LOCK), waits=False)
            if self._lock is None:
                return False
            self._records.open(path)
            return True
        try:
            self._records.open(path, os.O_EXCL)  # whoever began one may still write to it
        except FileExistsError:
            return False
        return True

    def _give_up(self) -> bool:
        """Let nothing more be written; return True the first time."""
        with self._changed:
            before, self.writes = self.writes, False
            return before


class _Written:
    """A file that is written at any offset.

    Invariants:
        1. Without `os.pwrite` (Windows), only the holder of ``_seeking`` moves the position.

    Threads:
        open: compatible; before others write.
        write_at: shared.
    """

    def __init__(self) -> None:
        self._number = -1
        self._seeking = Lock()  # the file's position, without pwrite: guarded by _seeking

    def __del__(self, close: Callable[[int], None] = os.close) -> None:
        if self._number >= 0:
            close(self._number)  # at the interpreter's exit, modules may be gone

    def open(self, path: Path, flags: int = 0) -> None:
        """Open the file, and make it if it is not there."""
        flags |= os.O_WRONLY | os.O_CREAT | getattr(os, "O_BINARY", 0)
        self._number = os.open(path, flags, 0o644)

    def write_at(self, offset: int, data: bytes) -> None:
        """Write all of ``data`` at ``offset``.

        Raises:
            OSError: The disk is full, say.
        """
        left = memoryview(data)
        while left:
            count = self._some_at(offset, left)
            offset, left = offset + count, left[count:]

    if hasattr(os, "pwrite"):

        def _some_at(self, offset: int, data: memoryview) -> int:
            return os.pwrite(self._number, data, offset)
    else:

        def _some_at(self, offset: int, data: memoryview) -> int:
            with self._seeking:
                os.lseek(self._number, offset, os.SEEK_SET)
                return os.write(self._number, data)


def _name(number: int) -> str:
    return f"{number:05d}{RECORDS}"


def _bytes_in(folder: Path) -> int:
    """Return the bytes of all records."""
    sizes = 0
    for entry in os.scandir(folder):
        if entry.name.endswith(RECORDS):
            sizes += entry.stat().st_size
    return sizes
