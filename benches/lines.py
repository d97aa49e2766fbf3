"""JSON lines: parsed records a second of `Lines`, next to hand-written loops.

``python -m benches.lines``, once with each Python.

A file of 100,000 records of some 2 KB: a text, 100 numbers and a few keys.  One sample is a record,
parsed by ``json.loads``; batches of 256, as lists.

- loop, in order: ``for line in file``, parsed;
- loop, any order: an offset for each line in a list, ``seek`` and ``readline``, parsed;
- two threads by hand: ``Executor.map`` over chunks of the same offsets, a file for each thread;
- Lines, any order: in a ThreadLoader with 0, 1 and 2 threads, and by default.

All take turns in one process, in an order that rotates; of all rounds the median.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benches.harness.lanes import table_of
from benches.harness.machine import describe, python_label
from benches.harness.tables import machine_lines
from threadloader import ThreadLoader
from threadloader.datasets import Lines

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

RECORDS, BATCH = 100_000, 256


def main() -> int:
    """Run the rounds and print the table."""
    parser = argparse.ArgumentParser(
        prog="python -m benches.lines", description=(__doc__ or "").partition("\n")[0]
    )
    parser.add_argument("--rounds", type=int, default=5)
    rounds = parser.parse_args().rounds
    print(machine_lines([(python_label(), describe())]))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "records.jsonl")
        with path.open("w") as file:
            file.writelines(f"{json.dumps(_record(number))}\n" for number in range(RECORDS))
        begun = time.perf_counter()
        dataset = Lines(path)
        took = time.perf_counter() - begun
        print(f"\n{path.stat().st_size / 2**20:,.0f} MiB; the index took {took * 1000:,.0f} ms")
        print(table_of(_lanes(path, dataset), rounds, "record"))
    return 0


def _record(number: int) -> dict[str, Any]:
    rng = random.Random(number)
    values = [round(rng.random(), 6) for _ in range(100)]
    return {"id": number, "text": f"record {number} " * 60, "values": values, "kind": "a"}


def _lanes(path: Path, dataset: Lines) -> dict[str, Callable[[], Iterable[list[Any]]]]:
    with path.open("rb") as file:
        offsets = [0, *(file.tell() for _ in iter(file.readline, b""))][:-1]
    random.Random(1).shuffle(offsets)
    chunks = [offsets[at : at + BATCH] for at in range(0, RECORDS, BATCH)]
    loader = partial(ThreadLoader, dataset, BATCH, shuffle=True, collate_fn=list)
    return {
        "loop, in order": lambda: ([json.loads(line)] for line in path.open("rb")),
        "loop, any order": lambda: map(partial(_seek, path.open("rb")), chunks),
        "two threads by hand": lambda: _in_threads(path, chunks),
        "Lines": loader,
        **{f"Lines, {threads} threads": partial(loader, threads=threads) for threads in (0, 1, 2)},
    }


def _seek(file: Any, offsets: list[int]) -> list[Any]:
    found = []
    for offset in offsets:
        file.seek(offset)
        found.append(json.loads(file.readline()))
    return found


def _in_threads(path: Path, chunks: list[list[int]]) -> Iterable[list[Any]]:
    with ThreadPoolExecutor(2) as pool:
        yield from pool.map(lambda chunk: _seek(path.open("rb"), chunk), chunks)


if __name__ == "__main__":
    sys.exit(main())
