"""What a random stream for each sample costs: with the isolation and without, side by side.

``python -m benches.rng``

The same dataset draws nothing, once or ten times a sample from one kind of generator, and is
loaded in the calling thread with ``isolate_rng=True`` and ``False``, turn by turn; the cost is the
difference within a round.  Then what draws in a thread that loads nothing cost while there are
workers; and how large the state is from which an epoch is resumed, next to that of torchdata's
``StatefulDataLoader`` with 8 worker processes, if it is installed.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import pickle
import random
import sys
import time
from threading import Event
from typing import TYPE_CHECKING, Any

import numpy as np

from benches.harness.machine import describe, python_label
from benches.harness.rounds import Spread
from benches.harness.tables import align, machine_lines, show_spread
from threadloader import ThreadLoader, sample_rng

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

BATCH = 256  # samples
MICRO = 1e6


def main() -> int:
    """Run the rounds, print the tables, return the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m benches.rng", description=(__doc__ or "").partition("\n")[0]
    )
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--samples", type=int, default=20 * BATCH, help="in one measurement")
    options = parser.parse_args()
    draws = {"nothing": _nothing, **_draws()}
    print(machine_lines([(python_label(), describe())]))
    rows = []
    for title, draw in draws.items():
        for times in (1, 10) if draw is not _nothing else (0,):
            off, on = _measure(draw, times, options.samples, options.rounds)
            cost = [mine - its for mine, its in zip(on, off, strict=True)]
            figures = [show_spread(Spread.of(each)) for each in (off, on, cost)]
            rows.append([title, str(times), *figures])
    header = ["draws", "a sample", "us without", "us with isolation", "difference"]
    print("\nmicroseconds a sample, threads=0\n" + align(header, rows))
    rows = []
    for title, draw in _draws().items():
        alone, beside = _outside(draw, options.rounds)
        cost = [mine - its for mine, its in zip(beside, alone, strict=True)]
        rows.append([title, *(show_spread(Spread.of(each)) for each in (alone, beside, cost))])
    header = ["draws", "us without workers", "us with", "difference"]
    print("\nmicroseconds a call in a thread that loads nothing\n" + align(header, rows))
    rows = [
        [title, str(delivered), *map(str, _sizes(state))] for title, delivered, state in _states()
    ]
    header = ["state of", "batches delivered", "bytes pickled", "bytes as JSON"]
    print("\nsize of the state, 100,000 samples shuffled, batches of 256\n" + align(header, rows))
    return 0


class Drawing:
    """A dataset that draws some random numbers for each sample.

    Args:
        draw: Draws one number.
        times: How often.
        samples: Its length.
    """

    def __init__(self, draw: Callable[[], object], times: int, samples: int) -> None:
        self.draw = draw
        self.times = times
        self.samples = samples

    def __len__(self) -> int:
        return self.samples

    def __getitem__(self, index: int) -> int:
        for _ in range(self.times):
            self.draw()
        return index


class Waiting:
    """A dataset whose one sample takes until it is told."""

    def __init__(self) -> None:
        self.begun = Event()
        self.told = Event()

    def __len__(self) -> int:
        return 1

    def __getitem__(self, index: int) -> int:
        self.begun.set()
        self.told.wait()
        return index


def _measure(
    draw: Callable[[], object], times: int, samples: int, rounds: int
) -> tuple[list[float], list[float]]:
    """Return microseconds a sample without and with isolation, by round."""
    loaders = [
        ThreadLoader(
            Drawing(draw, times, samples), BATCH, threads=0, output="numpy", isolate_rng=isolate
        )
        for isolate in (False, True)
    ]
    taken: tuple[list[float], list[float]] = ([], [])
    for number in range(rounds + 1):
        for which in (0, 1) if number % 2 else (1, 0):
            started = time.perf_counter()
            for _ in loaders[which]:
                pass
            if number:  # the first round is the warm-up
                taken[which].append((time.perf_counter() - started) / samples * MICRO)
    return taken


def _outside(
    draw: Callable[[], object], rounds: int, calls: int = 20_000
) -> tuple[list[float], list[float]]:
    """Return microseconds a call in this thread, without and with a worker that waits, by round."""
    taken: tuple[list[float], list[float]] = ([], [])
    for number in range(rounds + 1):
        for which in (0, 1):
            dataset = Waiting()
            with ThreadLoader(dataset, threads=1, output="numpy") as loader:
                epoch = iter(loader) if which else None
                if epoch is not None:
                    dataset.begun.wait()
                started = time.perf_counter()
                for _ in range(calls):
                    draw()
                elapsed = time.perf_counter() - started
                dataset.told.set()
            if number:
                taken[which].append(elapsed / calls * MICRO)
    return taken


def _states() -> Iterator[tuple[str, int, dict[str, Any]]]:
    """Yield loaders' states in the middle of an epoch, with the batches delivered before."""
    samples = range(100_000)
    makes: dict[str, Callable[[], Any]] = {
        "ThreadLoader, 8 threads": lambda: ThreadLoader(samples, BATCH, shuffle=True, threads=8),
        "the same, seed=17": lambda: ThreadLoader(samples, BATCH, True, threads=8, seed=17),
    }
    if importlib.util.find_spec("torch"):
        import torch

        makes["the same, generator="] = lambda: ThreadLoader(
            samples, BATCH, shuffle=True, threads=8, generator=torch.Generator()
        )
    if importlib.util.find_spec("torchdata"):
        from torchdata.stateful_dataloader import StatefulDataLoader

        makes["StatefulDataLoader, 8 workers"] = lambda: StatefulDataLoader(
            samples, BATCH, shuffle=True, num_workers=8
        )
    for title, make in makes.items():
        loader = make()
        batches = iter(loader)
        for delivered in range(1, 101):
            next(batches)
            if delivered in (1, 100):
                yield title, delivered, loader.state_dict()
        del batches


def _sizes(state: dict[str, Any]) -> tuple[int, int | str]:
    """Return the bytes of a state, pickled and as JSON, or why it is none."""
    try:
        return len(pickle.dumps(state)), len(json.dumps(state))
    except TypeError:
        return len(pickle.dumps(state)), "not JSON-able"


def _nothing() -> None:
    pass


def _draws() -> dict[str, Callable[[], object]]:
    """Return what draws one number from each kind of generator."""
    found: dict[str, Callable[[], object]] = {
        # Looked up at each call, as user code does: the functions are replaced meanwhile.
        "random.random()": lambda: random.random(),  # noqa: PLW0108
        "np.random.rand()": lambda: np.random.rand(),  # noqa: NPY002, PLW0108
        "sample_rng().random()": lambda: sample_rng().random(),
    }
    if importlib.util.find_spec("torch"):
        import torch

        buffer: Any = torch.empty(1)
        found["Tensor.uniform_()"] = buffer.uniform_
    return found


if __name__ == "__main__":
    sys.exit(main())
