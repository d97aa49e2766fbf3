"""A trace of one loader: recorded while its context is entered, and written as it is left."""

from __future__ import annotations

import gzip
import logging
import os
import platform
from collections import defaultdict
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from datetime import UTC, datetime
from threading import current_thread, get_ident
from time import perf_counter
from typing import TYPE_CHECKING

from threadloader._trace.chrome import Slice, write_chrome
from threadloader._trace.stages import add_listener, remove_listener

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from threadloader._trace.stages import Counts, Rows


_log = logging.getLogger("threadloader")


class _Recorder:
    """Keeps the stages of one loader; `opened` is a `Listener`.

    Args:
        loader: See `EpochKey`.
        limit: Stages that are kept; later ones are counted, and dropped.

    Threads:
        opened: shared; without a lock, since a finalizer may call it in its middle.
        slices: the one that has removed it from the listeners.
    """

    def __init__(self, loader: object, limit: int) -> None:
        self._loader = loader
        self._limit = limit
        self._stages: list[Slice] = []  # appending is atomic on both builds
        self._dropped: dict[int, int] = defaultdict(int)  # by the thread, which alone counts them

    def opened(self, stage: str, rows: Rows | None, counts: Counts | None) -> Callable[[], object]:
        """Keep a stage; see `Listener`."""
        if rows is None or rows.epoch[0] is not self._loader:
            return bool
        if len(self._stages) >= self._limit:
            self._dropped[get_ident()] += 1
            return bool
        kept = Slice(stage, rows, counts, current_thread(), perf_counter())
        self._stages.append(kept)
        return kept.end

    def slices(self) -> tuple[list[Slice], int]:
        """Return what was kept, what goes on cut off now, and how much was dropped."""
        stages, now = self._stages.copy(), perf_counter()
        kept = [replace(stage, ended=min(stage.ended, now)) for stage in stages[: self._limit]]
        return kept, sum(self._dropped.copy().values()) + len(stages) - len(kept)


@contextmanager
def recorded(path: str | os.PathLike[str], loader: object, limit: int) -> Iterator[None]:
    """Record, and write the file at the end, also after an error; but not in a forked child.

    Args:
        path: Of the file; one that ends with ``.gz`` is compressed.
        loader: See `EpochKey`.
        limit: Stages that are recorded.

    Raises:
        OSError: The file can't be written.
    """
    recorder, pid, name = _Recorder(loader, limit), os.getpid(), os.fspath(path)
    about: dict[str, object] = {"program": "threadloader", "python": platform.python_version()}
    with open(path, "wb") as file:  # noqa: PTH123  # now: a wrong path is not to cost an epoch
        about["began"], began = datetime.now(UTC).isoformat(), perf_counter()
        add_listener(recorder.opened)
        try:
            yield
        finally:
            remove_listener(recorder.opened)
            if pid == os.getpid():
                slices, about["dropped events"] = recorder.slices()
                if about["dropped events"]:
                    lacks = "%s lacks the last %d events: there was room for %d (limit=)"
                    _log.warning(lacks, name, about["dropped events"], limit)
                with gzip.open(file, "wb", 6) if name.endswith(".gz") else nullcontext(file) as out:
                    write_chrome(out, slices, began, about)
