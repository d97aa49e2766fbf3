"""The cost of counting: this checkout next to another one, by CPU time, in rounds by turns.

``python -m benches.counting PATH``

PATH is a checkout that counts less: the commit before the counting, say.  Each round runs one fresh
process for each checkout, which loads the same samples several times; the figure of a round is its
fastest epoch, in nanoseconds of CPU time a sample.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
import warnings
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

HERE = Path(__file__).parents[1]
NANO = 1e9


class Case(NamedTuple):
    """What is loaded, and how."""

    samples: int
    batch_size: int
    threads: int
    steps: int  # of Python in a sample: 0 is one that returns at once
    epochs: int


CASES = {
    "a small epoch: 256 in all, 16": Case(256, 16, 0, 0, 2000),
    "nothing, 256, in the calling thread": Case(25600, 256, 0, 0, 12),
    "nothing, 256, one thread": Case(25600, 256, 1, 0, 12),
    "nothing, 256, two threads": Case(25600, 256, 2, 0, 12),
    "nothing, 16, in the calling thread": Case(12800, 16, 0, 0, 12),
    "nothing, 16, one thread": Case(12800, 16, 1, 0, 12),
    "1,000 steps, 16, one thread": Case(16000, 16, 1, 1000, 4),
    "20,000 steps, 8, one thread": Case(800, 8, 1, 20000, 4),
}


class Steps:
    """Sample ``i`` is ``i``, after so many steps of Python.

    Args:
        size: Samples.
        steps: Of a loop.
    """

    def __init__(self, size: int, steps: int) -> None:
        self.size = size
        self.steps = steps

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, index: int) -> int:
        for _ in range(self.steps):
            pass
        return index


def main() -> int:
    """Run the rounds, print the table, return the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m benches.counting", description=(__doc__ or "").partition("\n")[0]
    )
    parser.add_argument("other", type=Path, help="the checkout that counts less")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--measure", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.measure:
        print(json.dumps({name: _least(case) for name, case in CASES.items()}))
        return 0
    figures: dict[str, list[tuple[float, float]]] = {name: [] for name in CASES}
    for number in range(options.rounds):
        trees = (HERE, options.other.resolve())
        found = {tree: _measure(tree) for tree in (trees if number % 2 else reversed(trees))}
        for name, pairs in figures.items():
            pairs.append((found[trees[1]][name], found[trees[0]][name]))
    print(f"{'nanoseconds of CPU time a sample':36} other  here  least  median of differences")
    for name, pairs in figures.items():
        other, here = (min(column) for column in zip(*pairs, strict=True))
        between = median(mine - its for its, mine in pairs)
        print(f"{name:36} {other:,.0f} {here:,.0f} {here - other:+,.0f} {between:+,.0f}")
    return 0


def _measure(tree: Path) -> dict[str, float]:
    """Return the figures of one checkout, taken in a fresh process."""
    environment = os.environ | {"PYTHONPATH": str(tree)}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    command = [sys.executable, str(Path(__file__).resolve()), "--measure", str(tree)]
    done = subprocess.run(
        command, env=environment, cwd=tree, check=True, text=True, capture_output=True
    )
    found: dict[str, float] = json.loads(done.stdout)
    return found


def _least(case: Case) -> float:
    """Return the nanoseconds of CPU time a sample in the fastest of some epochs."""
    import threadloader

    given = Path(sys.argv[-1]).resolve()
    if not Path(threadloader.__file__).is_relative_to(given):
        msg = f"{threadloader.__file__} is not of {given}"
        raise RuntimeError(msg)
    warnings.simplefilter("ignore")
    taken: list[float] = []
    dataset: Any = Steps(case.samples, case.steps)
    with threadloader.ThreadLoader(dataset, case.batch_size, threads=case.threads) as loader:
        for _ in range(case.epochs):
            started = time.process_time()
            for _ in loader:
                pass
            taken.append(time.process_time() - started)
    return NANO * min(taken) / case.samples


if __name__ == "__main__":
    sys.exit(main())
