"""The file of a trace: opened when the trace begins, written when it ends."""

from __future__ import annotations

import gzip
import json
import logging
import os
import platform
from datetime import UTC, datetime
from pathlib import Path
from time import perf_counter
from typing import IO, TYPE_CHECKING, Any

from threadloader._trace.chrome import chrome_events
from threadloader._trace.recorder import Recorder

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from types import TracebackType

    from threadloader._trace.chrome import Event
    from threadloader._trace.recorder import Slots
    from threadloader._trace.tracers import Tracers

__all__ = ["TraceFile"]

_encode = json.JSONEncoder(separators=(",", ":")).encode


class TraceFile:
    """Records while its context is entered, and writes the trace as it is left.

    Args:
        path: Of the file; one that ends with ``.gz`` is compressed.
        tracers: Of the loader.
        count_slots: See `Recorder`.
        limit: See `Recorder`.

    Threads:
        enter, exit: compatible.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        tracers: Tracers,
        count_slots: Callable[[], Slots],
        limit: int,
    ) -> None:
        self._path = Path(path)
        self._tracers = tracers
        self._count_slots = count_slots
        self._limit = limit
        self._recorder: Recorder | None = None
        self._file: IO[bytes] | None = None
        self._pid = os.getpid()

    def __enter__(self) -> None:
        """Begin to record.

        Raises:
            OSError: The file can't be written.
            RuntimeError: It records already.
        """
        if self._recorder is not None:
            msg = "this trace is being recorded; loader.trace(path) returns another one"
            raise RuntimeError(msg)
        self._pid = os.getpid()
        self._file = self._path.open("wb")  # now: a wrong path is not to cost an epoch
        self._began = datetime.now(UTC)
        self._recorder = Recorder(self._count_slots, self._limit)
        self._tracers.add(self._recorder)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Write the file, also after an error; not in a forked child, whose parent does."""
        recorder, file = self._recorder, self._file
        self._recorder = self._file = None
        if recorder is None or file is None:
            return
        with file:
            self._tracers.remove(recorder)
            if self._pid != os.getpid():
                return
            lanes, ended = recorder.stop(), perf_counter()
            dropped = sum(lane.dropped for lane in lanes)
            if dropped:
                logging.getLogger("threadloader").warning(
                    "%s lacks the last %d events: there was room for %d (limit=)",
                    self._path,
                    dropped,
                    self._limit,
                )
            about = {
                "program": "threadloader",
                "began": self._began.isoformat(),
                "python": platform.python_version(),
                "dropped events": dropped,
            }
            events = chrome_events(lanes, recorder.started, ended)
            if self._path.suffix != ".gz":
                _write(file, events, about)
                return
            with gzip.GzipFile(fileobj=file, mode="wb", compresslevel=6) as compressed:
                _write(compressed, events, about)


def _write(file: Any, events: Iterable[Event], about: dict[str, Any]) -> None:
    """Write a trace, one event a line."""
    file.write(b'{"displayTimeUnit":"ms","otherData":' + _encode(about).encode())
    file.write(b',"traceEvents":[')
    between = b"\n"
    for event in events:
        file.write(between + _encode(event).encode())
        between = b",\n"
    file.write(b"\n]}\n")
