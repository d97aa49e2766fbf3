"""Array datasets: what a loader adds to indexing an array, shuffled and in order.

``python -m benches.gather``

Rows of 64 float32 in memory, shuffled, in batches of 256: next to a loop of ``x[index]`` with an
array of indices, which is all that has to be done, and to torch's DataLoader without workers on a
TensorDataset, where torch is installed.  Then a memory-map in order, in batches of three sizes,
next to copying the same bytes into one buffer, which stays in the processor's cache if it is small,
as no batch that is kept could.  All in one process, turn by turn in an order that rotates; each
turn starts behind the first batches.
"""

from __future__ import annotations

import argparse
import importlib.util
import sys
import tempfile
import time
from functools import partial
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from benches.harness.machine import describe, python_label
from benches.harness.rounds import Spread
from benches.harness.tables import align, machine_lines, show_ratio, show_spread
from threadloader import ThreadLoader
from threadloader.datasets import ArrayDataset

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from numpy.typing import NDArray

SAMPLES, FEATURES, BATCH = 1_000_000, 64, 256
MAPPED = (256, 4096, 16_384)  # rows: 64 KiB, 1 and 4 MiB
WARM = 16  # batches, before the clock starts
TORCH = "torch DataLoader x0"
Lanes = dict[str, "Callable[[], Iterator[Any]]"]


def main() -> int:
    """Run the rounds, print the tables, return 1 if a target was missed."""
    parser = argparse.ArgumentParser(
        prog="python -m benches.gather", description=(__doc__ or "").partition("\n")[0]
    )
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--batches", type=int, default=1500, help="in one measurement")
    options = parser.parse_args()
    print(machine_lines([(python_label(), describe())]))
    rng = np.random.default_rng(17)
    rows = rng.random((SAMPLES, FEATURES), np.float32)
    lanes = _shuffled(rows, rng.permutation(SAMPLES))
    rates = _measure(lanes, options.rounds, options.batches, BATCH)
    print(f"\nshuffled rows of {FEATURES} float32, batches of {BATCH}")
    best = _table(rates, "x[index]")
    missed = _judge(f"{best} / x[index]", rates[best], rates["x[index]"], 0.8)
    if TORCH in rates:
        missed |= _judge(f"{best} / torch's", rates[best], rates[TORCH], 10)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "rows.bin"
        rows.tofile(path)
        mapped = np.memmap(path, np.float32, "r", shape=rows.shape)
        for size in MAPPED:
            batches = min(options.batches, SAMPLES // size - WARM)
            rates = _measure(_in_order(mapped, size), options.rounds, batches, size)
            print(f"\na memory-map in order, batches of {size:,}")
            best = _table(rates, "memcpy")
            missed |= _judge(f"{best} / memcpy", rates[best], rates["memcpy"], 0.7)
        del mapped
    return int(missed)


def _shuffled(rows: NDArray[np.float32], order: NDArray[np.int64]) -> Lanes:
    def indexing() -> Iterator[Any]:
        for start in range(0, SAMPLES, BATCH):
            yield rows[order[start : start + BATCH]]

    lanes: Lanes = {"x[index]": indexing}
    for threads in (0, 1, 2):
        lanes[f"threadloader x{threads}"] = partial(_loading, rows, BATCH, threads, shuffle=True)
    if importlib.util.find_spec("torch") is not None:
        import torch
        from torch.utils.data import DataLoader, TensorDataset

        torch.set_num_threads(1)
        dataset = TensorDataset(torch.from_numpy(rows))
        lanes[TORCH] = lambda: iter(DataLoader(dataset, BATCH, shuffle=True))
    return lanes


def _in_order(mapped: NDArray[np.float32], size: int) -> Lanes:
    def copying() -> Iterator[Any]:
        source = np.asarray(mapped)
        buffer = np.empty((size, FEATURES), np.float32)
        for start in range(0, SAMPLES - size + 1, size):
            np.copyto(buffer, source[start : start + size])
            yield buffer

    lanes: Lanes = {"memcpy": copying}
    for threads in (0, 1, 2):
        loop = partial(_loading, mapped, size, threads, shuffle=False)
        lanes[f"threadloader x{threads}"] = loop
    return lanes


def _loading(
    rows: NDArray[np.float32], batch_size: int, threads: int, *, shuffle: bool
) -> Iterator[Any]:
    with ThreadLoader(ArrayDataset(rows), batch_size, shuffle=shuffle, threads=threads) as loader:
        yield from loader


def _measure(lanes: Lanes, rounds: int, batches: int, rows: int) -> dict[str, list[float]]:
    """Return million rows a second of each lane, by round."""
    rates: dict[str, list[float]] = {name: [] for name in lanes}
    names = list(lanes)
    for number in range(rounds + 1):
        turn = number % len(names)
        for name in names[turn:] + names[:turn]:
            # A lane that takes long for a batch is given fewer of them.
            count = batches // 10 if name == TORCH else batches
            loop = lanes[name]()
            for _ in islice(loop, min(WARM, count)):
                pass
            started = time.perf_counter()
            for _ in islice(loop, count):
                pass
            elapsed = time.perf_counter() - started
            del loop  # a generator closes its loader
            if number:  # the first round is the warm-up
                rates[name].append(count * rows / elapsed / 1e6)
    return rates


def _table(rates: dict[str, list[float]], against: str) -> str:
    """Print a table; return the fastest of our lanes."""
    cells = []
    for name, mine in rates.items():
        ratio = Spread.of([one / other for one, other in zip(mine, rates[against], strict=True)])
        cells.append([name, show_spread(Spread.of(mine)), show_ratio(ratio)])
    print(align(["loop", "million rows/s", f"x {against}"], cells))
    ours = [name for name in rates if name.startswith("threadloader")]
    return max(ours, key=lambda name: sum(rates[name]))


def _judge(claim: str, mine: list[float], its: list[float], bound: float) -> bool:
    """Print what became of a target; return whether it was missed."""
    ratio = Spread.of([one / other for one, other in zip(mine, its, strict=True)])
    missed = ratio is None or ratio.median < bound
    print(f"{'MISSED' if missed else 'met'}: {claim} {show_ratio(ratio)}, at least {bound}")
    return missed


if __name__ == "__main__":
    sys.exit(main())
