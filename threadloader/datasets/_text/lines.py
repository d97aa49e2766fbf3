"""Lines: the lines of text files as a map-style dataset, any line at any time.

The offsets of all lines are in one array for each file, which is built once, and kept.
"""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import accumulate
from typing import TYPE_CHECKING, Any

import numpy as np

from threadloader import _torch
from threadloader._tuning.machine import usable_cores
from threadloader.datasets._files import open_files
from threadloader.datasets._shards.kept import kept_index
from threadloader.datasets._shards.names import find_shards, place_of, told_shards
from threadloader.datasets._urls import shown_url
from threadloader.errors import DataError

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Iterable

    from numpy.typing import NDArray

    from threadloader.datasets._files import File


LIMIT = 16 << 20  # bytes of a line
_BLOCK = 4 << 20  # bytes that are searched at a time, by each thread
_VERSION = 1  # of the index
_LONGEST = (1 << 32) - 1  # bytes, that the index can hold
_NEWLINE = 10
_NOT_READ = {"bz2", "lz4", "xz", "zip"}  # which would be lines of nonsense


class Lines(_torch.Dataset[Any]):
    r"""Lines of text files, by their number, parsed.

    A line ends with ``\n`` or ``\r\n``, the last one of a file also without.  Empty lines count.

    Args:
        pattern: Paths or URLs, with ``{000..123}`` and ``*``; one or several.
        parse: Called with the bytes of each line, without its end; ``bytes.decode`` for text.
        limit: Most bytes of a line, below 4 GiB.
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

    def __init__(
        self,
        pattern: str | os.PathLike[str] | Iterable[str | os.PathLike[str]],
        *,
        parse: Callable[[bytes], Any] = json.loads,
        limit: int = LIMIT,
        index_folder: str | os.PathLike[str] | None = None,
        **options: Any,
    ) -> None:
        check_limit(limit)
        self.files = find_shards(pattern, **options)
        self.parse = parse
        self._files: tuple[File, ...] = tuple(open_files(self.files, **options))
        # (lines + 1,) of each file: where its lines begin, and its end.
        self._starts: list[NDArray[np.int64]] = []
        with ThreadPoolExecutor(usable_cores() or 1, thread_name_prefix="tl-index") as pool:
            for file, path in zip(self._files, self.files, strict=True):
                self._starts.append(_starts(file, path, index_folder, limit, pool))
        self._ends = np.array(list(accumulate(len(each) - 1 for each in self._starts)), np.int64)

    def __len__(self) -> int:
        """Return the number of lines."""
        return int(self._ends[-1])

    def __repr__(self) -> str:
        return f"Lines: {len(self):,} in {told_shards(self.files)}"

    def __getitem__(self, index: int) -> Any:
        """Return a line.

        Raises:
            DataError: It is no JSON; or its file changed after the index was made.
            IndexError: There is no such line.
        """
        which, row = place_of(index, self._ends, "lines")
        file, starts = self._files[which], self._starts[which]
        start, end = starts[row : row + 2].tolist()
        return parsed(self.parse, file.read_at(start, end - start), file.path, start)

    def close(self) -> None:
        """Close files and connections; the next read opens them again."""
        for file in self._files:
            file.close()


def parsed(parse: Callable[[bytes], Any], line: bytes, path: str, offset: int) -> Any:
    """Return a line, parsed.

    Raises:
        DataError: It is no JSON.
        Exception: From the user's function, with a note on the place.
    """
    try:
        return parse(line.removesuffix(b"\n").removesuffix(b"\r"))
    except Exception as error:
        if parse is json.loads and isinstance(error, ValueError):
            raise DataError(f"the line is no JSON: {error}", path, offset=offset) from error
        error.add_note(f"while parsing a line of {path}, offset {offset:,}")
        raise


def compression_of(path: str) -> str:
    """Return ``""``, ``"gzip"`` or ``"zstd"``, by the name's ending.

    Raises:
        ValueError: The file is compressed in another way.
    """
    ending = path.lower().partition("?")[0].rpartition(".")[2]
    if ending in _NOT_READ:
        raise ValueError(
            f"{shown_url(path)}: of compressed text .gz and .zst are read, and no .{ending}"
        )
    return {"gz": "gzip", "zst": "zstd"}.get(ending, "")


def check_limit(limit: int) -> None:
    """Refuse a limit of bytes that no line could keep, or no index hold."""
    if not 0 < limit < _LONGEST:
        raise ValueError(f"limit={limit} is no number of bytes from 1 to below 4 GiB")


def too_long(path: str, offset: int, limit: int) -> DataError:
    """Return the error for a line beyond the limit."""
    return DataError(f"the line has more than {limit:,} bytes", path, offset=offset)


def _starts(
    file: File,
    path: str,
    folder: str | os.PathLike[str] | None,
    limit: int,
    pool: ThreadPoolExecutor,
) -> NDArray[np.int64]:
    """Return where the lines of a file begin, and its end."""
    if compression_of(path):
        msg = f"{file.path} is compressed: unpack it for random access, or read it by LineStream"
        raise ValueError(msg)
    file.expect(file.stamp())  # another version of the file has other offsets
    build = partial(_built, file, pool)
    lengths = kept_index(file, path, folder, _VERSION, {"lengths": "u4"}, build)["lengths"]
    starts = np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)])
    over = np.flatnonzero(lengths > limit)
    if len(over):
        raise too_long(file.path, int(starts[over[0]]), limit)
    return starts


def _built(file: File, pool: ThreadPoolExecutor) -> dict[str, NDArray[np.uint32]]:
    """Return the lengths of a file's lines, in bytes, with their ends."""
    size = file.size()

    def ends(start: int) -> NDArray[np.int64]:
        data = np.frombuffer(file.read_at(start, min(_BLOCK, size - start)), np.uint8)
        return np.flatnonzero(data == _NEWLINE) + (start + 1)

    found = np.concatenate([[0], *pool.map(ends, range(0, size, _BLOCK)), [size]])
    lengths = np.diff(found[: -1 if found[-1] == found[-2] else None])
    return {"lengths": np.minimum(lengths, _LONGEST).astype(np.uint32)}
