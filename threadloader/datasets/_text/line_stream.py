"""LineStream: the lines of text files from beginning to end, compressed or not."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from threadloader.datasets._shards.stream import ShardStream
from threadloader.datasets._tar import open_unpacked
from threadloader.datasets._text.lines import LIMIT, check_limit, compression_of, parsed, too_long
from threadloader.errors import DataError

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Iterable, Iterator


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
        pattern: str | os.PathLike[str] | Iterable[str | os.PathLike[str]],
        *,
        parse: Callable[[bytes], Any] = json.loads,
        shuffle: int = 0,
        seed: int | None = None,
        limit: int = LIMIT,
        **options: Any,
    ) -> None:
        check_limit(limit)
        super().__init__(pattern, shuffle, seed, options)
        for path in self.shards:
            compression_of(path)  # raises at once what the first epoch would
        self.parse = parse
        self.limit = limit

    def read_shard(self, number: int) -> Iterator[tuple[int, bytes]]:
        """Yield the lines of a file, each with its offset in the unpacked file."""
        path, offset = self.path_of(number), 0
        compression = compression_of(self.shards[number])
        with open_unpacked(self._shared.files[number], compression) as unpacked:
            while True:
                try:
                    line = unpacked.stream.readline(self.limit + 1)
                except unpacked.damage as error:
                    msg = f"it can't be unpacked: {error}"
                    raise DataError(msg, path, offset=offset) from error
                if not line:
                    return
                if len(line) > self.limit:
                    raise too_long(path, offset, self.limit)
                yield offset, line
                offset += len(line)

    def make(self, sample: tuple[int, bytes], path: str) -> Any:
        """Return a line, parsed."""
        offset, line = sample
        return parsed(self.parse, line, path, offset)
