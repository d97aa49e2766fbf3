"""Lines of text files: any line at any time, or one after the other, of compressed files, too.

Where the lines of a file begin is an array, which is built once, and kept.
"""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import numpy as np

from threadloader.datasets._shards.decoding import called
from threadloader.datasets._shards.kept import IndexedFiles
from threadloader.datasets._shards.stream import ShardStream
from threadloader.datasets._tar import compression_of, name_of, open_unpacked
from threadloader.datasets._urls import shown_url
from threadloader.errors import DataError, checked_count

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Iterator

    from numpy.typing import NDArray

    from threadloader.datasets._files import File, Patterns
    from threadloader.datasets._shards.kept import Index


LIMIT = 16 << 20  # bytes of a line
_BLOCK = 4 << 20  # bytes that are searched at a time, by each thread
_NEWLINE = 10
_NOT_READ = (".bz2", ".lz4", ".xz", ".zip")  # which would be lines of nonsense


class Lines(IndexedFiles):
    r"""Lines of text files, by their number, parsed.

    A line ends with ``\n`` or ``\r\n``, the last one of a file also without.  Empty lines count.

    Args:
        pattern: Paths or URLs, with ``{000..123}`` and ``*``; one or several.
        parse: Called with the bytes of each line, without its end; ``bytes.decode`` for text.
        limit: Most bytes of a line.
        index_folder: Folder of the indexes; None to keep them beside the files or, if that can't
            be done, in the user's cache folder.
        options: For URLs; see `threadloader.datasets._files.open_files`.

    Raises:
        DataError: A line is longer than ``limit``.
        FileNotFoundError: There is no such file.
        ValueError: A file is compressed, or ``limit`` is out of its range.

    Threads:
        all: shared.
    """

    __module__ = "threadloader.datasets"  # its public place, which pickles name
    index_version, index_names = 3, ("starts",)

    def __init__(
        self,
        pattern: Patterns,
        *,
        parse: Callable[[bytes], Any] = json.loads,
        limit: int = LIMIT,
        index_folder: str | os.PathLike[str] | None = None,
        **options: Any,
    ) -> None:
        checked_count("limit", limit, at_least=1)
        self.parse = parse
        super().__init__(pattern, index_folder, options)
        self.files = self._files.paths
        for file, index in zip(self._files.files, self._indexes, strict=True):
            over = np.flatnonzero(np.diff(index.starts) > limit)
            if len(over):
                raise _too_long(file.path, int(index.starts[over[0]]), limit)

    @classmethod
    def samples_of(cls, index: Index) -> int:
        """Return the number of lines in a file."""
        return len(index.starts) - 1

    def check(self, path: str) -> None:
        """Refuse a file that is compressed."""
        _check_ending(path)
        if compression_of(path):
            told = "unpack it for random access, or read it by LineStream"
            raise ValueError(f"{shown_url(path)} is compressed: {told}")

    def build_index(self, file: File) -> dict[str, Any]:
        """Return where the lines of a file begin, and its end: (lines + 1,)."""
        size = file.size()

        def ends(start: int) -> NDArray[np.int64]:
            data = np.frombuffer(file.read_at(start, min(_BLOCK, size - start)), np.uint8)
            return np.flatnonzero(data == _NEWLINE) + (start + 1)

        with ThreadPoolExecutor(thread_name_prefix="tl-index") as pool:
            starts = np.concatenate([[0], *pool.map(ends, range(0, size, _BLOCK))])
        return {"starts": starts if starts[-1] == size else np.append(starts, size)}

    def __repr__(self) -> str:
        return f"Lines: {len(self):,} in {self._files}"

    def __getitem__(self, index: int) -> Any:
        """Return a line.

        Raises:
            DataError: It is no JSON; or its file changed after the index was made.
            IndexError: There is no such line.
        """
        file, found, row = self._find(index, "lines")
        start, end = found.starts[row : row + 2].tolist()
        return _parsed(self.parse, file.read_at(start, end - start), file.path, start)


class LineStream(ShardStream[tuple[int, bytes]]):
    """Lines of text files, one after the other; `Lines` says what a line is.

    Files are shared out, shuffled, resumed, and passed over when damaged, as by `TarStream`.

    Args:
        pattern: Paths or URLs of files, as they are or as ``.gz`` or ``.zst``; one or several.
        parse: See `Lines`.
        shuffle: Lines in the shuffle buffer, not parsed; see `TarStream`.
        seed: See `TarStream`.
        limit: Most bytes of a line.
        options: For URLs; see `threadloader.datasets._files.open_files`.

    Raises:
        FileNotFoundError: There is no such file.
        ValueError: ``shuffle`` or ``limit`` is out of its range, or a file is compressed in
            another way.

    Threads:
        set_epoch: consumer, between two epochs; close: shared; all else: one thread, the worker
        that owns it.
    """

    __module__ = "threadloader.datasets"  # its public place, which pickles name

    def __init__(
        self,
        pattern: Patterns,
        *,
        parse: Callable[[bytes], Any] = json.loads,
        shuffle: int = 0,
        seed: int | None = None,
        limit: int = LIMIT,
        **options: Any,
    ) -> None:
        checked_count("limit", limit, at_least=1)
        super().__init__(pattern, shuffle, seed, options)
        for path in self.shards:
            _check_ending(path)  # raises at once what the first epoch would
        self.parse = parse
        self.limit = limit

    def read_shard(self, number: int) -> Iterator[tuple[int, bytes]]:
        """Yield the lines of a file, each with its offset in the unpacked file."""
        path, offset = self.path_of(number), 0
        with open_unpacked(self._shared.files.files[number]) as unpacked:
            while True:
                try:
                    line = unpacked.stream.readline(self.limit + 1)
                except unpacked.damage as error:
                    msg = f"it can't be unpacked: {error}"
                    raise DataError(msg, path, offset=offset) from error
                if not line:
                    return
                if len(line) > self.limit:
                    raise _too_long(path, offset, self.limit)
                yield offset, line
                offset += len(line)

    def make(self, sample: tuple[int, bytes], path: str) -> Any:
        """Return a line, parsed."""
        offset, line = sample
        return _parsed(self.parse, line, path, offset)


def _parsed(parse: Callable[[bytes], Any], line: bytes, path: str, offset: int) -> Any:
    """Return a line, parsed.

    Raises:
        DataError: It is no JSON.
        Exception: From the user's function, with a note on the place.
    """
    line = line.removesuffix(b"\n").removesuffix(b"\r")
    damage = "the line is no JSON" if parse is json.loads else ""
    return called(parse, line, "parsing a line", path, damage, {"offset": offset})


def _check_ending(path: str) -> None:
    """Refuse a file that is compressed in another way than those that are read."""
    if name_of(path).endswith(_NOT_READ):
        raise ValueError(f"{shown_url(path)}: of compressed text .gz and .zst are read")


def _too_long(path: str, offset: int, limit: int) -> DataError:
    """Return the error for a line beyond the limit."""
    return DataError(f"the line has more than {limit:,} bytes", path, offset=offset)
