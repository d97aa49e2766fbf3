"""The cost of a random stream for each sample: with the isolation and without, side by side.

``python -m benches.rng``, once with each Python

The same dataset draws once or five times a sample from one kind of generator, and is
loaded in the calling thread with ``isolate_rng=True`` and ``False``, turn by turn.  The cost is the
difference in CPU time within a round: of the first draw, and of each further one.  (What images
cost that torch's operations augment, `benches.north_star` says.)
"""

from __future__ import annotations

import importlib.util
import random
import sys
import time
from typing import TYPE_CHECKING

import numpy as np

from benches.harness.command import command_line
from benches.harness.machine import machine_lines
from benches.harness.tables import Spread, align, show_spread
from threadloader import ThreadLoader, sample_rng

if TYPE_CHECKING:
    from collections.abc import Callable

BATCH, SAMPLES = 256, 20 * 256
TIMES = 5  # draws
MICRO = 1e6


class Drawing:
    """A dataset that draws some random numbers for each sample.

    Args:
        draw: Draws one number.
        times: How often.
    """

    def __init__(self, draw: Callable[[], object], times: int) -> None:
        self.draw = draw
        self.times = times

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, index: int) -> int:
        for _ in range(self.times):
            self.draw()
        return index


def main() -> int:
    """Run the rounds, print the table, return the exit code."""
    parser = command_line("rng", __doc__)
    parser.add_argument("--rounds", type=int, default=15)
    rounds = parser.parse_args().rounds
    print(machine_lines())
    rows = []
    for title, draw in _draws().items():
        off, on = _measure(Drawing(draw, 1), rounds)
        first = [mine - its for mine, its in zip(on, off, strict=True)]
        more = [
            mine - its for its, mine in zip(*_measure(Drawing(draw, TIMES), rounds), strict=True)
        ]
        each = [(all_ - one) / (TIMES - 1) for all_, one in zip(more, first, strict=True)]
        rows.append([title, *(show_spread(Spread.of(column)) for column in (off, on, first, each))])
    print("microseconds of CPU time a sample, threads=0")
    print(align(["draws", "without", "with isolation", "first draw", "each further"], rows))
    return 0


def _measure(dataset: Drawing, rounds: int) -> tuple[list[float], list[float]]:
    """Return microseconds a sample without and with isolation, by round."""
    loaders = [
        ThreadLoader(dataset, BATCH, threads=0, isolate_rng=isolate) for isolate in (False, True)
    ]
    taken: tuple[list[float], list[float]] = ([], [])
    for number in range(rounds + 1):
        for which in (0, 1) if number % 2 else (1, 0):
            started = time.thread_time()
            for _ in loaders[which]:
                pass
            if number:  # the first round is the warm-up
                taken[which].append((time.thread_time() - started) / SAMPLES * MICRO)
    return taken


def _draws() -> dict[str, Callable[[], object]]:
    """Return what draws one number from each kind of generator."""
    found: dict[str, Callable[[], object]] = {
        "nothing": int,
        # Looked up at each call, as user code does: the functions are replaced meanwhile.
        "random.random()": lambda: random.random(),  # noqa: PLW0108
        "np.random.rand()": lambda: np.random.rand(),  # noqa: NPY002, PLW0108
        "sample_rng().random()": lambda: sample_rng().random(),
    }
    if importlib.util.find_spec("torch"):
        import torch

        found["torch.rand(1)"] = lambda: torch.rand(1)
        found["torch.randint(9, (2,))"] = lambda: torch.randint(9, (2,))
        found["torch.randn(3)"] = lambda: torch.randn(3)
        found["torch.randperm(10)"] = lambda: torch.randperm(10)
    return found


if __name__ == "__main__":
    sys.exit(main())
