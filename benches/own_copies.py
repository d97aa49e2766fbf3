"""What it costs that each worker has its own objects: time and memory a worker, and the start.

``python -m benches.own_copies``

An epoch has a first sample and one for each worker; these wait for each other, so that every worker
makes its copies.  Rounds go through all cases in turn; figures are medians, less those without
threads, and a worker's are less those of a dataset without anything.  Memory is tracemalloc's most.
Only public names of the loader are used, so the same file measures another commit.
"""

from __future__ import annotations

import argparse
import gc
import importlib.util
import statistics
import time
import tracemalloc
from threading import Barrier
from typing import Any

import numpy as np

from benches.harness.machine import describe, python_label
from benches.harness.tables import align, machine_lines
from threadloader import ThreadLoader

MILLI, MIB = 1e3, 1 << 20
MEET: list[Barrier] = []  # of the module, where no copy of a dataset leads


class Dataset:
    """A dataset that keeps something, of as many samples as there are workers, and one more."""

    def __init__(self, kept: Any, workers: int) -> None:
        self.kept, self.workers = kept, workers

    def __len__(self) -> int:
        return 1 + self.workers

    def __getitem__(self, index: int) -> int:
        if index and MEET:
            MEET[0].wait()
        return index


class Step:
    """A transform with parameters, some of which it draws for each sample."""

    def __init__(self, number: int) -> None:
        self.size, self.mean, self.std = (224, 224), [0.5, 0.5, 0.5], [0.2, 0.2, 0.2]
        self.rng, self.params = np.random.default_rng(number), {"angle": 0.0, "scale": 1.0}


class Trainer:
    """Holds all of a training, its dataset and its collate function among them."""

    def __init__(self, workers: int) -> None:
        self.weights = {f"layer{n}": np.zeros((512, 1024), np.float32) for n in range(24)}
        self.history = [{"step": step, "loss": 0.1, "rate": 0.01} for step in range(5000)]
        self.steps = [Step(number) for number in range(20)]
        self.dataset = Dataset(self, workers)

    def collate(self, samples: list[int]) -> list[int]:
        """Return the samples."""
        return samples


def _coco() -> Any:
    box = [1.0, 2.0, 3.0, 4.0]
    made = [{"id": n, "image_id": n // 5, "bbox": [*box]} for n in range(100_000)]
    return {"annotations": made, "imgToAnns": {n: made[5 * n : 5 * n + 5] for n in range(20_000)}}


def _trie(depth: int = 3) -> dict[str, Any]:
    return {chr(48 + n): _trie(depth - 1) for n in range(39)} if depth else {}


def _compose() -> Any:
    if not importlib.util.find_spec("torchvision"):
        return {"transforms": [Step(number) for number in range(20)]}
    transforms = importlib.import_module("torchvision.transforms")
    return transforms.Compose([transforms.ColorJitter(0.1) for _ in range(20)])


def _tokenizer() -> Any:
    words = {f"word{number}": number for number in range(128_000)}
    if not importlib.util.find_spec("tokenizers"):
        return {"ids": words, "words": list(words), "special": {"<pad>": 0, "<eos>": 1}}
    tokenizers = importlib.import_module("tokenizers")
    return tokenizers.Tokenizer(tokenizers.models.WordLevel(words, "word0"))


CASES: dict[str, Any] = {
    "nothing": lambda: None,
    "5,000,000 strings": lambda: [f"sentence {n}" for n in range(5_000_000)],
    "1,200,000 paths, labels": lambda: [(f"/d/{n}.jpg", n % 1000) for n in range(1_200_000)],
    "100,000 annotations": _coco,
    "9,000 arrays of 20 KB": lambda: [np.zeros(5000, np.float32) for _ in range(9000)],
    "trie of 60,000 dicts": _trie,
    "Compose of 20": _compose,
    "tokenizer of 128,000 words": _tokenizer,
}


def _epoch(dataset: Any, collate: Any, workers: int) -> tuple[float, float]:
    """Return ms to the first batch, and CPU ms of the whole epoch."""
    MEET[:] = [Barrier(workers)] if workers else []
    with ThreadLoader(dataset, 1, threads=workers, collate_fn=collate) as loader:
        start, cpu = time.perf_counter(), time.process_time()
        batches = iter(loader)
        next(batches)
        first = time.perf_counter() - start
        list(batches)
        return first * MILLI, (time.process_time() - cpu) * MILLI


def main() -> int:
    """Run the rounds, print the table, return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m benches.own_copies", description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=16)
    options = parser.parse_args()
    workers: int = options.threads
    trainer = Trainer(workers)
    lanes: dict[str, tuple[Any, Any]] = {k: (Dataset(f(), workers), list) for k, f in CASES.items()}
    lanes["collate_fn of a trainer"] = trainer.dataset, trainer.collate
    gc.freeze()  # no collection looks at the data
    found: dict[str, list[list[float]]] = {name: [] for name in lanes}
    for _ in range(options.rounds):
        for name, lane in lanes.items():
            threads, bare = _epoch(*lane, workers), _epoch(*lane, 0)
            found[name].append([a - b for a, b in zip(threads, bare, strict=True)])
    print(machine_lines([(python_label(), describe())]))
    rows: list[list[str]] = []
    nothing: list[float] = []
    for name, lane in lanes.items():
        figures = [statistics.median(each) for each in zip(*found[name], strict=True)]
        tracemalloc.start()
        _epoch(*lane, workers)
        figures.append(tracemalloc.get_traced_memory()[1] / MIB)
        tracemalloc.stop()
        nothing = nothing or figures
        _, cpu, most = ((a - b) / workers for a, b in zip(figures, nothing, strict=True))
        rows.append([name, f"{figures[0]:.1f}", f"{cpu:.2f}", f"{most:.2f}"])
    print(align([f"{workers} threads", "first batch, ms", "CPU ms a worker", "MiB a worker"], rows))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
