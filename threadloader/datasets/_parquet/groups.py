"""Row groups of Parquet files: found by the footers, read whole, decoded once for all threads.

    footers -> groups -> one read of a group's columns -> decoded -> held for the next batches

Nothing smaller than a row group can be decoded, and batches of one group come soon after each
other.  So the groups that were decoded last are held.  Of all threads that want a group one decodes
it; the others decode what else they need, and then wait for it.
"""

from __future__ import annotations

import json
import os
from collections import deque
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from functools import partial
from itertools import accumulate
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
from pyarrow import parquet

from threadloader.datasets._files import read_spans
from threadloader.datasets._local_file import SeekableFile
from threadloader.datasets._parquet.columns import column_of
from threadloader.datasets._urls import is_url
from threadloader.errors import DataError, RemoteError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from threadloader.datasets._files import File


_GAP = 1 << 20  # bytes that are read rather than left out: at 100 MB/s a request takes as long
_OPENING = 16  # footers that are read at a time: behind URLs, most of that is waiting


class RowGroups:
    """The row groups of some files.

    Args:
        files: In order.
        columns: Names of those that are read; None for all of the first file.
        group_filter: What groups pass by their statistics, for pyarrow; None for all.

    Attributes:
        files: In order.
        columns: Names of those that are read.
        images: Names of those that Hugging Face's datasets say have images.
        starts: (groups + 1,), int64: the number of rows before each group, and of all.
        capacity: Groups that are held, decoded.

    Raises:
        DataError: A file is damaged, lacks a column, or has one of another type than the first.

    Threads:
        capacity: one thread, before others read; all else: shared.  Storing in a dict and a deque,
        and taking from them, are atomic on both builds.
    """

    def __init__(self, files: Sequence[File], columns: Sequence[str] | None, group_filter: Any):
        self.files = files
        if isinstance(group_filter, list):
            group_filter = parquet.filters_to_expression(group_filter)
        with ThreadPoolExecutor(_OPENING, thread_name_prefix="tl-footer") as pool:
            found = list(pool.map(partial(_footer, group_filter=group_filter), files))
        self._footers = [footer for footer, _, _ in found]
        schemas = [schema for _, schema, _ in found]
        self.columns = list(schemas[0].names if columns is None else columns)
        for file, schema in zip(files, schemas, strict=True):
            _check_columns(file.path, schema, schemas[0], self.columns)
        self.images = [name for name in _images(schemas[0]) if name in self.columns]
        self._groups = [(file, group) for file, told in enumerate(found) for group in told[2]]
        rows = [self._footers[file].row_group(group).num_rows for file, group in self._groups]
        self.starts = np.array([0, *accumulate(rows)], np.int64)
        self.capacity = 2  # the one that is being read, and the one before
        # By process and number: a forked child waits for no thread of its parent's.  None as the
        # result: reading failed, for a reason that the thread that tried has raised.
        self._held: dict[tuple[int, int], Future[Any]] = {}
        self._order: deque[tuple[int, int]] = deque()  # those that are held, as they came

    def __getstate__(self) -> dict[str, Any]:
        return vars(self) | {"_held": {}, "_order": deque()}

    def place(self, row: int) -> tuple[str, str]:
        """Return the path of a row's file, and the row's place in words."""
        number = int(self.starts.searchsorted(row, "right")) - 1
        file, group = self._groups[number]
        return self.files[file].path, f"row {row - self.starts[number]} of row group {group}"

    def decoded(self, numbers: Sequence[int]) -> list[dict[str, Any]]:
        """Return groups, decoded: their columns by name; see `column_of`.

        Args:
            numbers: Of the groups, from 0 for the first of all files.

        Raises:
            DataError: A group is damaged.
            OSError: It can't be read.
        """
        found = [self._begun(number) for number in numbers]
        return [
            self._read(number) if (columns := future.result()) is None else columns
            for number, future in zip(numbers, found, strict=True)
        ]

    def _begun(self, number: int) -> Future[Any]:
        """Return a group that somebody has decoded, or is decoding; decode it if nobody is."""
        key = os.getpid(), number
        found = self._held.get(key)
        if found is not None:
            return found
        mine: Future[Any] = Future()
        columns = None
        try:
            found = self._held.setdefault(key, mine)
            if found is mine:
                self._order.append(key)
                with suppress(IndexError):  # others were faster
                    while len(self._order) > self.capacity:
                        self._held.pop(self._order.popleft(), None)
                columns = self._read(number)
        finally:
            if columns is None and self._held.get(key) is mine:
                self._held.pop(key, None)
            mine.set_result(columns)
        return found

    def _read(self, number: int) -> dict[str, Any]:
        index, group = self._groups[number]
        file, metadata = self.files[index], self._footers[index]
        told = metadata.row_group(group).num_rows
        with _as_damage(file.path, f"row group {group}"):
            # Not by pyarrow's `pre_buffer`: threads of its own would read, which go on after an
            # error, and keep it with all frames behind it.
            options = {"metadata": metadata, "pre_buffer": False}
            with parquet.ParquetFile(_source(file, self._reading(number)), **options) as reader:
                table = reader.read_row_group(group, self.columns, use_threads=False)
            if table.num_rows != told:
                raise pa.ArrowInvalid(f"{table.num_rows:,} rows, and the footer says {told:,}")
            return {name: column_of(table[name]) for name in self.columns}

    def _reading(self, number: int) -> Callable[[int, int], Any]:
        """Return what reads the file of a group; behind a URL the group is read now, as a whole.

        Where a column lies is asked for there alone: pyarrow ends the process at some damages.
        """
        index, group = self._groups[number]
        file = self.files[index]
        if not is_url(file.path):
            return file.read_at
        told = self._footers[index].row_group(group)
        chunks = map(told.column, range(told.num_columns))
        wanted = [each for each in chunks if each.path_in_schema.partition(".")[0] in self.columns]
        return read_spans(file, map(_span, wanted), _GAP)


def _span(chunk: Any) -> tuple[int, int]:
    """Return where a column of a row group begins and ends."""
    begin = chunk.dictionary_page_offset or chunk.data_page_offset
    return begin, begin + chunk.total_compressed_size


def _source(file: File, read_at: Callable[[int, int], Any]) -> Any:
    return pa.PythonFile(SeekableFile(read_at, file.size()), mode="r")


def _footer(file: File, group_filter: Any) -> tuple[Any, Any, Sequence[int]]:
    """Return a file's footer, its schema, and which of its groups pass the filter."""
    file.expect(file.stamp())  # another version of the file has other groups
    with _as_damage(file.path, "it can't be opened"):
        source = _source(file, file.read_at)
        metadata = parquet.ParquetFile(source, pre_buffer=False).metadata
        schema, groups = metadata.schema.to_arrow_schema(), range(metadata.num_row_groups)
        if min((metadata.row_group(group).num_rows for group in groups), default=0) < 0:
            raise pa.ArrowInvalid("a row group has a negative number of rows")
    if group_filter is None:
        return metadata, schema, groups
    from pyarrow import dataset  # noqa: PLC0415  # loads much, and few need it

    with _as_damage(file.path, "group_filter= can't be applied"):
        fragment = dataset.ParquetFileFormat().make_fragment(source)
        passing = fragment.subset(filter=group_filter).row_groups
    return metadata, schema, [group.id for group in passing]


def _check_columns(path: str, schema: Any, first: Any, columns: Sequence[str]) -> None:
    for name in columns:
        if (count := schema.names.count(name)) != 1:
            names = ", ".join(map(repr, schema.names))
            msg = f"it has {'no' if not count else 'more than one'} column {name!r}: {names}"
            raise DataError(msg, path)
        found, wanted = schema.field(name).type, first.field(name).type
        if found != wanted:
            msg = f"its column {name!r} is of {found}, and that of the first file of {wanted}"
            raise DataError(msg, path)


def _images(schema: Any) -> list[str]:
    """Return the names of columns that are images, as Hugging Face's datasets note it."""
    features: dict[str, Any] = {}
    with suppress(Exception):  # there is no such note, or its bytes mean anything
        features = dict(json.loads(schema.metadata[b"huggingface"])["info"]["features"])
    kinds = {name: kind for name, kind in features.items() if isinstance(kind, dict)}
    return [name for name, kind in kinds.items() if kind.get("_type") == "Image"]


@contextmanager
def _as_damage(path: str, what: str) -> Iterator[None]:
    """Raise pyarrow's errors, but for a lack of memory, as a `DataError`."""
    try:
        yield
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        if isinstance(error, (RemoteError, MemoryError)) or getattr(error, "errno", None):
            raise
        raise DataError(f"{what}: {error}", path) from error
