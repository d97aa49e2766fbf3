"""A stream over a remote file: the next ranges are read while the current one is consumed.

Each stream has a thread that reads one range for each token in a queue; the stream puts a token in
for each range that it takes out.  Queues are used instead of a condition because dropping the
stream has to end the thread, and a finalizer can run inside any lock.
"""

from __future__ import annotations

import io
import os
from queue import SimpleQueue
from threading import Thread
from typing import TYPE_CHECKING, TypeAlias

from threadloader._authors import DROPPED, Stop, stops_here
from threadloader.errors import ClosedError

if TYPE_CHECKING:
    from collections.abc import Callable

    from typing_extensions import Buffer


Ready: TypeAlias = "SimpleQueue[bytes | BaseException]"

# A longer read becomes several requests, so that a dropped connection costs only one.  A block of
# the cache has this size, too.  Unmeasured, a choice: at 100 MB/s and 10 ms a request, a fifth of
# the time is waiting.
RANGE_BYTES = 4 << 20
AHEAD = 2  # ranges that are read ahead: one is being read, one is ready


class ReadAhead(io.RawIOBase):
    """Bytes of a file from its beginning, for `io.BufferedReader`.

    Args:
        read: Takes an offset, a number of bytes and flags that end it, returns these bytes; called
            in the thread.
        size: Of the file, in bytes.
        path: Of the file, for errors.
        stop: Set when the file is closed.

    Threads:
        readinto: compatible; one thread reads.
        close: shared, also from finalizers; it does not wait: the thread ends after its current
            request.
    """

    def __init__(self, read: Callable[..., bytes], size: int, path: str, stop: Stop) -> None:
        super().__init__()
        self._pid, self._path = os.getpid(), path
        self._stop = Stop()
        self._tokens: SimpleQueue[bool] = SimpleQueue()
        self._ready: Ready = SimpleQueue()
        self._left = memoryview(b"")  # of the range that is consumed
        self._missing = size  # bytes that are still to be taken out of `_ready`
        for _ in range(AHEAD):
            self._tokens.put(True)
        stops = self._stop, stop, *stops_here()
        Thread(
            target=_read_on,
            args=(read, size, path, self._tokens, self._ready, stops),
            name="tl-ahead",
            daemon=True,  # a server that stalls does not delay the interpreter's exit
        ).start()

    def readable(self) -> bool:
        """Return True."""
        return True

    def readinto(self, buffer: Buffer, /) -> int:
        """Read into a buffer; return how many bytes, 0 at the end."""
        self._checkClosed()
        if not self._left and self._missing:
            try:
                self._left = memoryview(self._take())
            except BaseException:
                self = DROPPED  # see `_take`
                raise
            self._missing -= len(self._left)
            self._tokens.put(True)
        target = memoryview(buffer).cast("B")
        count = min(len(target), len(self._left))
        target[:count] = self._left[:count]
        self._left = self._left[count:]
        return count

    def close(self) -> None:
        """Let the thread end.  Idempotent."""
        if not self.closed:
            self._stop.set()
            self._tokens.put(False)
            self._ready = SimpleQueue()  # or an error in it keeps its frames, which have the stream
        super().close()

    def _take(self) -> bytes:
        """Return the next range."""
        if self._pid != os.getpid():
            msg = f"{self._path}: opened before a fork, it has no thread here; open it anew"
            raise ClosedError(msg)
        found = self._ready.get()
        if isinstance(found, bytes):
            return found
        self._ready.put(found)  # for the next read
        try:
            raise found
        finally:
            self = found = DROPPED  # the error keeps this frame, and the stream keeps the error


def _read_on(
    read: Callable[..., bytes],
    size: int,
    path: str,
    tokens: SimpleQueue[bool],
    ready: Ready,
    stops: tuple[Stop, ...],
) -> None:
    """Read one range for each token: the body of the thread, without a reference to the stream."""
    offset = 0
    try:
        while offset < size:
            if not tokens.get():
                raise ClosedError(f"{path}: the stream was closed")
            data = read(offset, min(RANGE_BYTES, size - offset), *stops)
            offset += len(data)
            ready.put(data)
            del data
    except BaseException as error:  # noqa: BLE001  # handed to the reader of the stream
        ready.put(error)
    finally:
        # The error is in `ready` and keeps this frame: its variables would make a cycle.
        read = tokens = ready = stops = DROPPED
