"""ParquetRows: rows of Parquet files as a map-style dataset, single ones or whole batches.

A sampler of its own, `RowBatches`, gives rows that lie in few row groups: what is read is decoded
once.  Since a loader has the order, it also shares it out, saves its place and counts its batches,
as it does for every map-style dataset.

    groups, shuffled ──▶ dealt out to parts ──▶ a few at a time, their rows shuffled ──▶ batches

Parts take turns: batch ``b`` is of part ``b % parts``.  So ranks whose number divides that of parts
read groups of their own, and the sequence is the same for any number of ranks.
"""

from __future__ import annotations

import operator
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import chain, zip_longest
from typing import TYPE_CHECKING, Any, SupportsIndex

import numpy as np

from threadloader._authors import Dataset, rank_and_world
from threadloader.datasets._files import Files
from threadloader.datasets._shards.decoding import called
from threadloader.errors import DataError, checked_count

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from numpy.typing import NDArray

    from threadloader.datasets._files import Patterns
    from threadloader.datasets._parquet.groups import RowGroups


# Batches that threads may be making at once, so that none decodes a group which another has done
# with.  A choice: small groups alone need it, as a large one has many batches.
_AHEAD = 32


class ParquetRows(Dataset[Any]):
    """Rows of Parquet files, by their number: ``rows[7]`` is a dict, and so is ``rows[[7, 3]]``.

    Of several rows each value of the dict is a column: an array, ``(rows, ...)``, or a list.

    Args:
        pattern: Paths or URLs, with ``{000..123}`` and ``*``; one or several.
        columns: Names of those that are read; None for all.
        group_filter: Row groups are left out whose statistics show that no row passes: a list as
            for pyarrow's ``filters``, ``[("year", ">=", 2020)]``, or an expression of pyarrow's.
            Of the others all rows are read.
        decode: Whether images are decoded, in columns that Hugging Face's datasets wrote as such.
            A dict of functions of bytes, by column, is added to that.
        transform: Applied to what ``rows[...]`` would be: a row, or some.
        options: For URLs; see `threadloader.datasets._files.open_files`.

    Raises:
        DataError: A file is damaged, lacks a column or one that the filter names, or has one of
            another type than the first file.
        FileNotFoundError: There is no such file.
        ModuleNotFoundError: pyarrow is not installed.
        TypeError: ``columns`` is a single name.
        ValueError: ``decode`` names a column that is not read.

    Threads:
        all: shared.
    """

    __module__ = "threadloader.datasets"  # its public place, which pickles name

    def __init__(
        self,
        pattern: Patterns,
        *,
        columns: Sequence[str] | None = None,
        group_filter: Any = None,
        decode: bool | Mapping[str, Callable[[bytes], Any]] = True,
        transform: Callable[[Any], Any] | None = None,
        **options: Any,
    ) -> None:
        try:
            from threadloader.datasets._parquet.groups import RowGroups  # noqa: PLC0415  # needs it
        except ModuleNotFoundError as error:
            msg = "ParquetRows needs pyarrow: pip install pyarrow (extra: parquet)"
            raise ModuleNotFoundError(msg, name="pyarrow") from error
        if isinstance(columns, str):
            raise TypeError(f"columns must be a list of names, but got {columns!r}")
        self._files = Files(pattern, options)
        self.files = self._files.paths
        self._groups: RowGroups = RowGroups(self._files.files, columns, group_filter)
        self.columns: Sequence[str] = tuple(self._groups.columns)
        self.transform = transform
        # An attribute, since copies of a dataset for each worker look for users' functions here.
        self.decoders: dict[str, Any] = dict(decode) if isinstance(decode, Mapping) else {}
        for name in self.decoders:
            if name not in self.columns:
                msg = f"decode= has {name!r}, which is none of the columns {self.columns}"
                raise ValueError(msg)
        # Columns that are decoded by a function of ours.
        self._own = set(self._groups.images if decode else ()).difference(self.decoders)
        if self._own:
            from threadloader.datasets._images.decode import decode_image  # noqa: PLC0415  # loads a decoder

            self.decoders.update(dict.fromkeys(self._own, decode_image))

    def __len__(self) -> int:
        """Return the number of rows."""
        return int(self._groups.starts[-1])

    def __repr__(self) -> str:
        groups = len(self._groups.starts) - 1
        return f"ParquetRows: {len(self):,} rows in {groups:,} groups, {self._files}"

    def __getitem__(self, index: int | Sequence[int] | NDArray[np.integer[Any]]) -> Any:
        """Return a row, or some: a dict by column.

        Raises:
            DataError: A row group, or an image, is damaged; or the file was changed.
            IndexError: There is no such row.
            TypeError: It is neither an integer nor a list of some.
        """
        single = isinstance(index, SupportsIndex) and not np.ndim(index)
        given = np.asarray([operator.index(index)] if single else index)  # type: ignore[arg-type]
        if given.ndim != 1 or (len(given) and given.dtype.kind not in "iu"):
            msg = f"an index must be a row's number, or a list of some, but got {index!r}"
            raise TypeError(msg)
        rows = given.astype(np.int64)  # of a copy
        rows[rows < 0] += len(self)
        if len(rows) and not 0 <= rows.min() <= rows.max() < len(self):
            msg = f"index {index} is out of range: there are {len(self)} rows"
            raise IndexError(msg)
        from threadloader.datasets._parquet.columns import stacked  # noqa: PLC0415  # needs pyarrow

        found = self._taken(rows)
        for name, function in self.decoders.items():
            if name in found:
                values = zip(rows.tolist(), found[name], strict=True)
                decoded = [self._decoded(function, name, row, value) for row, value in values]
                found[name] = decoded if single else stacked(decoded)
        if single:
            found = {name: values[0] for name, values in found.items()}
        return found if self.transform is None else self.transform(found)

    def batches(
        self,
        size: int,
        *,
        shuffle: bool = True,
        seed: int = 0,
        mix: int = 8,
        parts: int | None = None,
        drop_last: bool = False,
    ) -> RowBatches:
        """Return a sampler whose batches lie in few row groups.

        ``ThreadLoader(rows, batch_size=None, sampler=rows.batches(256))`` has whole batches by
        column; ``ThreadLoader(rows, batch_sampler=rows.batches(256))`` collates single rows.

        Args:
            size: Rows in a batch.
            shuffle: Whether the groups are shuffled, and the rows of ``mix`` groups at a time.
            seed: Decides the order, together with the epoch; the same for all ranks.
            mix: Row groups whose rows are mixed.  Twice as many are held in memory, decoded, and
                those of 32 batches.
            parts: Of the groups, that take turns: as many as ranks, or a multiple of it, so that
                each rank reads groups of its own.  By default the number of ranks here.
            drop_last: Whether a last batch of fewer rows is left out.

        Raises:
            ValueError: A number is too small.
        """
        parts = rank_and_world()[1] if parts is None else parts
        batches = RowBatches(
            *(self._groups.starts, size),
            shuffle=shuffle,
            seed=seed,
            mix=mix,
            parts=parts,
            drop_last=drop_last,
        )
        groups = len(self._groups.starts) - 1
        ahead = -(-_AHEAD * size * groups // max(1, len(self)))  # groups that these batches have
        self._groups.capacity = max(self._groups.capacity, 2 * max(mix, parts) + ahead)
        return batches

    def close(self) -> None:
        """Close files and connections; the next read opens them again."""
        self._files.close()

    def _taken(self, rows: NDArray[np.int64]) -> dict[str, Any]:
        """Return the values of rows, by column, in their order."""
        from threadloader.datasets._parquet.columns import taken  # noqa: PLC0415  # needs pyarrow

        starts = self._groups.starts
        of_group = starts.searchsorted(rows, "right") - 1
        order = of_group.argsort(kind="stable")
        groups, firsts = np.unique(of_group[order], return_index=True)
        parts = np.split(rows[order] - starts[of_group[order]], firsts[1:])[: len(groups)]
        decoded = self._groups.decoded(groups.tolist())
        return {
            name: taken([columns[name] for columns in decoded], parts, order)
            for name in self.columns
        }

    def _decoded(self, function: Callable[[bytes], Any], name: str, row: int, value: Any) -> Any:
        if value is None:
            return None
        data = value["bytes"] if isinstance(value, Mapping) else value
        path, place = self._groups.place(row)
        if data is None:
            msg = f"{place}, column {name!r}: its bytes are not in the file: {value}"
            raise DataError(msg, path)
        damage = f"{place}, column {name!r} can't be decoded" if name in self._own else ""
        return called(function, data, f"decoding {place}, column {name!r}", path, damage)


@dataclass(eq=False)
class RowBatches:
    """The order of a `ParquetRows`, as a sampler of batches; made by its ``batches``.

    Args:
        starts: (groups + 1,): the number of rows before each row group, and of all.
        size: Rows in a batch, at least 1.
        shuffle: Whether groups and rows are shuffled.
        seed: Decides the order, together with the epoch.
        mix: Groups of all parts together whose rows are mixed.
        parts: That have groups of their own, and take turns.
        drop_last: Whether a last batch of fewer rows is left out.

    Attributes:
        epoch: Of the pass that begins next; each pass that begins adds 1.

    Raises:
        TypeError: A number is no int.
        ValueError: It is less than 1, or ``seed`` less than 0.

    Threads:
        all: planner only.
    """

    starts: NDArray[np.int64] = field(repr=False)
    size: int
    shuffle: bool
    seed: int
    mix: int
    parts: int
    drop_last: bool
    epoch: int = 0

    def __post_init__(self) -> None:
        for name, least in (("size", 1), ("seed", 0), ("mix", 1), ("parts", 1)):
            checked_count(name, getattr(self, name), at_least=least)

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch of the pass that begins next."""
        self.epoch = epoch

    def __len__(self) -> int:
        """Return the number of batches."""
        rows = int(self.starts[-1])
        return rows // self.size if self.drop_last else -(-rows // self.size)

    def __iter__(self) -> Iterator[list[int]]:
        """Yield the rows of each batch, by their numbers."""
        epoch, self.epoch = self.epoch, self.epoch + 1
        groups = np.arange(len(self.starts) - 1)
        if self.shuffle:
            np.random.default_rng((self.seed, epoch)).shuffle(groups)
        left: list[NDArray[np.int64]] = []  # what parts had left when they ended
        parts = (
            _cut(self._rows(groups[part :: self.parts], (self.seed, epoch, part)), self.size, left)
            for part in range(self.parts)
        )
        for batch in chain.from_iterable(zip_longest(*parts)):
            if batch is not None:  # of a part that has ended
                yield batch.tolist()
        rest: list[NDArray[np.int64]] = []
        for batch in (*_cut(left, self.size, rest), *rest):
            if len(batch) == self.size or (len(batch) and not self.drop_last):
                yield batch.tolist()

    def _rows(
        self, groups: NDArray[np.int64], seed: tuple[int, ...]
    ) -> Iterator[NDArray[np.int64]]:
        """Yield the rows of a part's groups, of some groups at a time."""
        rng, each = np.random.default_rng(seed), max(1, self.mix // self.parts)
        for first in range(0, len(groups), each):
            some = groups[first : first + each]
            rows = np.concatenate([np.arange(*self.starts[n : n + 2]) for n in some])
            if self.shuffle:
                rng.shuffle(rows)
            yield rows


def _cut(
    spans: Iterable[NDArray[np.int64]], size: int, left: list[NDArray[np.int64]]
) -> Iterator[NDArray[np.int64]]:
    """Yield rows in batches of one size; add to ``left`` what is left in the end."""
    rest = np.empty(0, np.int64)
    for span in spans:
        rows = np.concatenate([rest, span])
        whole = len(rows) // size * size
        yield from rows[:whole].reshape(-1, size)
        rest = rows[whole:]
    left.append(rest)
