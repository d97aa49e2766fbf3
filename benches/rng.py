"""What a random stream for each sample costs: with the isolation and without, side by side.

``python -m benches.rng``

The same dataset draws nothing, once or five times a sample from one kind of generator, and is
loaded in the calling thread with ``isolate_rng=True`` and ``False``, turn by turn.  The cost is the
difference in CPU time within a round: of the first draw, and of each further one.  Then that of
samples as of CIFAR-10, made of torch's operations with a random crop and flip.  Then what draws in
a thread that loads nothing cost while there are workers; and how large the state is from which an
epoch is resumed, next to that of torchdata's ``StatefulDataLoader`` with 8 worker processes, if it
is installed.
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
TIMES = 5  # draws
MICRO = 1e6


def main() -> int:
    """Run the rounds, print the tables, return the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m benches.rng", description=(__doc__ or "").partition("\n")[0]
    )
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--samples", type=int, default=20 * BATCH, help="in one measurement")
    options = parser.parse_args()
    print(machine_lines([(python_label(), describe())]))
    rows = []
    for title, draw in {"nothing": _nothing, **_draws()}.items():
        off, once = _measure(Drawing(draw, 1, options.samples), BATCH, options.rounds)
        first = [mine - its for mine, its in zip(once, off, strict=True)]
        figures = [off, once, first]
        if draw is not _nothing:
            off, often = _measure(Drawing(draw, TIMES, options.samples), BATCH, options.rounds)
            more = [mine - its for mine, its in zip(often, off, strict=True)]
            each = [(all_ - one) / (TIMES - 1) for all_, one in zip(more, first, strict=True)]
            figures.append(each)
        rows.append([title, *(show_spread(Spread.of(figure)) for figure in figures)])
        rows[-1] += [""] * (5 - len(rows[-1]))
    header = ["draws", "us without", "us with isolation", "first draw", "each further"]
    print("\nmicroseconds of CPU time a sample, threads=0\n" + align(header, rows))
    if importlib.util.find_spec("torch"):
        rows = []
        for title, draws in (("crop and flip at random", True), ("crop only, the same", False)):
            off, on = _measure(Cifar(options.samples, draws=draws), 64, options.rounds)
            ratio = [mine / its for mine, its in zip(on, off, strict=True)]
            rows.append([title, *(show_spread(Spread.of(each)) for each in (off, on, ratio))])
        header = ["3x32x32 to float, pad", "us without", "us with isolation", "ratio"]
        print(
            "\nmicroseconds of CPU time a sample, batches of 64, threads=0\n" + align(header, rows)
        )
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


class Cifar:
    """A dataset of images that are made of torch's operations.

    Args:
        samples: Its length.
        draws: Whether an image is cropped and flipped at random.
    """

    def __init__(self, samples: int, *, draws: bool) -> None:
        import torch

        torch.set_num_threads(1)
        self.torch = torch
        self.images = torch.randint(0, 256, (512, 3, 32, 32), dtype=torch.uint8)
        self.samples = samples
        self.draws = draws

    def __len__(self) -> int:
        return self.samples

    def __getitem__(self, index: int) -> Any:
        torch = self.torch
        image = self.images[index % len(self.images)].float().div_(255)
        image = torch.nn.functional.pad(image, (4, 4, 4, 4))
        top, left = torch.randint(0, 9, (2,)).tolist() if self.draws else (3, 4)
        image = image[:, top : top + 32, left : left + 32]
        if self.draws and torch.rand(1) < 0.5:
            image = image.flip(-1)
        return image


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


def _measure(dataset: Any, batch: int, rounds: int) -> tuple[list[float], list[float]]:
    """Return microseconds a sample without and with isolation, by round."""
    loaders = [
        ThreadLoader(dataset, batch, threads=0, isolate_rng=isolate) for isolate in (False, True)
    ]
    taken: tuple[list[float], list[float]] = ([], [])
    for number in range(rounds + 1):
        for which in (0, 1) if number % 2 else (1, 0):
            started = time.thread_time()
            for _ in loaders[which]:
                pass
            if number:  # the first round is the warm-up
                taken[which].append((time.thread_time() - started) / len(dataset) * MICRO)
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

        found["torch.rand(1)"] = lambda: torch.rand(1)
        found["torch.randint(9, (2,))"] = lambda: torch.randint(9, (2,))
        found["torch.randn(3)"] = lambda: torch.randn(3)
        found["torch.randperm(10)"] = lambda: torch.randperm(10)
    return found


if __name__ == "__main__":
    sys.exit(main())
