"""Parquet: rows a second of `ParquetRows`, next to pyarrow's dataset reader and Hugging Face's.

``python -m benches.parquet``, once with each Python; a library that is missing is left out.

Four files of 200,000 rows (an integer, a float, 16 floats, a text of some 100 characters) in row
groups of 20,000, zstd; batches of 256.  Once all columns but the text, once all.  Each lane ends in
the same thing: a batch of NumPy arrays, texts as objects.

- pyarrow's dataset reader: in order, with its own threads, each batch's columns to NumPy;
- Hugging Face, streaming: its own reader of the same files, a shuffle buffer of 10,000 rows;
- Hugging Face, map-style: the table in a memory-map of its own (made before the clock starts, and
  not Parquet any more), shuffled indices, a batch by one call;
- ParquetRows: in order, and shuffled; with the default number of threads, and with two.

All take turns in one process, in an order that rotates; of all rounds the median.
"""

from __future__ import annotations

import sys
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
from pyarrow import dataset as arrow
from pyarrow import parquet

from benches.harness.lanes import run_lanes
from threadloader import ThreadLoader
from threadloader.datasets import ParquetRows

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from pathlib import Path

FILES, ROWS, GROUP, BATCH = 4, 200_000, 20_000, 256
COLUMNS = ("number", "weight", "vector", "text")
BUFFER = 10_000  # rows, of Hugging Face's stream


def _tables(folder: Path) -> Any:
    paths = [_write(folder / f"{number}.parquet", number) for number in range(FILES)]
    return {
        ", ".join(columns): _lanes(paths, columns, str(folder))
        for columns in (COLUMNS[:-1], COLUMNS)
    }


def _write(path: Path, number: int) -> str:
    rng = np.random.default_rng(number)
    rows = np.arange(number * ROWS, (number + 1) * ROWS)
    vectors = pa.array(rng.random(ROWS * 16, np.float32))
    table = pa.table(
        {
            "number": rows,
            "weight": rng.random(ROWS, np.float32),
            "vector": pa.FixedSizeListArray.from_arrays(vectors, 16),
            "text": [f"text {row} " * 9 for row in rows],
        }
    )
    parquet.write_table(table, path, row_group_size=GROUP, compression="zstd")
    return str(path)


def _lanes(
    paths: list[str], columns: tuple[str, ...], folder: str
) -> dict[str, Callable[[], Iterable[Any]]]:
    """Return what each lane iterates over: an epoch of batches."""
    lanes: dict[str, Callable[[], Iterable[Any]]] = {
        "pyarrow's dataset reader": partial(_arrow, paths, columns),
        "ParquetRows, in order": partial(_ours, paths, columns, shuffle=False),
        "ParquetRows, shuffled": partial(_ours, paths, columns),
        "ParquetRows, shuffled, 2 threads": partial(_ours, paths, columns, threads=2),
    }
    try:
        import datasets
    except (ImportError, AttributeError) as error:  # of a release for another pyarrow
        print(f"  Hugging Face datasets is left out: {error}", file=sys.stderr)
        return lanes
    datasets.disable_progress_bars()
    options: dict[str, Any] = {"data_files": paths, "split": "train", "cache_dir": folder}
    stream = datasets.load_dataset("parquet", streaming=True, columns=list(columns), **options)
    table = datasets.load_dataset("parquet", columns=list(columns), **options)
    return lanes | {
        "Hugging Face, streaming": lambda: (
            stream.shuffle(seed=1, buffer_size=BUFFER).with_format("numpy").iter(batch_size=BATCH)
        ),
        "Hugging Face, map-style": lambda: _by_index(table.with_format("numpy")),
    }


def _arrow(paths: list[str], columns: tuple[str, ...]) -> Iterable[Any]:
    for batch in arrow.dataset(paths).to_batches(columns=list(columns), batch_size=BATCH):
        yield {name: _numpy(batch[name]) for name in columns}


def _numpy(column: Any) -> Any:
    if pa.types.is_fixed_size_list(column.type):
        return column.flatten().to_numpy().reshape(len(column), -1)
    return column.to_numpy(zero_copy_only=False)


def _ours(
    paths: list[str], columns: tuple[str, ...], *, shuffle: bool = True, threads: int | None = None
) -> Iterable[Any]:
    rows = ParquetRows(paths, columns=columns)
    options: dict[str, Any] = {} if threads is None else {"threads": threads}
    sampler = rows.batches(BATCH, shuffle=shuffle)
    return ThreadLoader(rows, batch_size=None, sampler=sampler, output="numpy", **options)


def _by_index(table: Any) -> Iterable[Any]:
    order = np.random.default_rng(1).permutation(len(table))
    return (table[order[at : at + BATCH]] for at in range(0, len(order), BATCH))


if __name__ == "__main__":
    sys.exit(
        run_lanes("parquet", __doc__, _tables, "row", count=lambda batch: len(batch["number"]))
    )
