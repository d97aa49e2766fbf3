"""What loading costs a consumer that is bound by its launches.

``python -m benches.interference 3.11=python3.11 3.13t=python3.13t``

The consumer's step is 4,000 operators of torch's on tensors of one element, as a model is whose
kernels are shorter than their launches.  Meanwhile photos are decoded, as many a step as take a
third of a core.  Each way of loading runs in a process of its own, turn by turn.  Told are the
median and the 99th percentile of a step, and the mean with the time in which it waited for its
batch, each divided by the median of the step alone in the same round.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

import numpy as np

from benches.harness.builds import labelled_python
from benches.harness.fresh_process import ROOT, calibrate, describe, make_photos, run_module
from benches.harness.tables import align, machine_lines
from benches.workloads.catalog import WORKLOADS

if TYPE_CHECKING:
    from collections.abc import Iterator

RESULTS = ROOT / "benches" / "results" / "interference.json"
WAYS = ("alone", "default", "one thread", "two threads", "torch, two processes")
LAUNCHES = 4000  # operators a step
SHARE = 3  # loading takes the CPU time of a step, divided by this
WARM_UP = 3.0  # seconds, in which the default finds its number
MOST = 1.05  # step beside the default, of the step alone, without a GIL
FIGURES = ("step", "p99", "with waiting")


def main() -> int:
    """Measure, print the table, write the file, return 1 where a target is missed."""
    parser = argparse.ArgumentParser(
        prog="python -m benches.interference", description=(__doc__ or "").partition("\n")[0]
    )
    parser.add_argument("pythons", nargs="*", type=labelled_python, metavar="LABEL=PYTHON")
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--output", type=Path, default=RESULTS)
    parser.add_argument("--child", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        print(json.dumps(_measure(**json.loads(options.child))))
        return 0
    pythons = dict(options.pythons) or {"this": sys.executable}
    make_photos(list(pythons.values()))
    machine = {label: describe(python) for label, python in pythons.items()}
    print(machine_lines(list(machine.items())))
    found: dict[str, Any] = {}
    missed, rows = 0, []
    for label, python in pythons.items():
        spin = calibrate(python)
        rounds = [_round(python, spin, options.steps) for _ in range(options.rounds)]
        ratios = {
            way: {name: median(each[way][name] for each in rounds) for name in FIGURES}
            for way in WAYS
        }
        found[label] = {"ratios": ratios, "rounds": rounds}
        good = _is_good(ratios, has_gil=rounds[0]["default"]["has_gil"])
        missed += not good
        for way, told in ratios.items():
            word = "" if way != "default" or good else "MISSED"
            rows.append([f"{way} {label}", *(f"{told[name]:.2f}" for name in FIGURES), word])
    print(align(["", *FIGURES, ""], rows))
    options.output.write_text(json.dumps({"machine": machine, "builds": found}, indent=1) + "\n")
    return 1 if missed else 0


def _is_good(ratios: dict[str, dict[str, float]], *, has_gil: bool) -> bool:
    """Whether the default disturbs the consumer as little as it should."""
    if has_gil:
        return ratios["default"]["step"] <= ratios["torch, two processes"]["step"]
    return ratios["default"]["step"] <= MOST


def _round(python: str, spin: int, steps: int) -> dict[str, Any]:
    """Measure each way once; return its figures, relative to the median of a step alone."""
    told: dict[str, Any] = {}
    for way in WAYS:
        asked = json.dumps({"way": way, "spin": spin, "steps": steps})
        told[way] = json.loads(run_module(python, "benches.interference", "--child", asked))
    alone = told["alone"]["step"]
    for way in WAYS:
        told[way] |= {name: told[way][name] / alone for name in FIGURES}
    return told


def _measure(way: str, spin: int, steps: int) -> dict[str, Any]:
    """Step beside one way of loading; return seconds."""
    import torch

    from threadloader._threads.concurrency import gil_is_enabled

    torch.set_num_threads(1)
    numbers = [torch.zeros(1) for _ in range(8)]

    def step() -> None:
        for _ in range(LAUNCHES // len(numbers)):
            for number in numbers:
                number.add_(1.0)

    dataset = WORKLOADS["photos"].make(1 << 40, spin)
    batch_size = _batch_size(dataset, step)
    batches = _batches(way, dataset, batch_size)
    end = time.perf_counter() + WARM_UP
    while time.perf_counter() < end:
        next(batches)
        step()
    took, waited = [], []
    for _ in range(steps):
        asked = time.perf_counter()
        next(batches)
        began = time.perf_counter()
        step()
        took.append(time.perf_counter() - began)
        waited.append(began - asked)
    return {
        "step": median(took),
        "p99": float(np.quantile(took, 0.99)),
        "with waiting": float(np.mean(took) + np.mean(waited)),
        "batch size": batch_size,
        "has_gil": gil_is_enabled(),
    }


def _batch_size(dataset: Any, step: Any) -> int:
    """Return how many samples take a third of the CPU time of a step."""
    steps, samples = [], []
    for index in range(8):
        began = time.thread_time()
        step()
        steps.append(time.thread_time() - began)
        began = time.thread_time()
        dataset[index]
        samples.append(time.thread_time() - began)
    return max(1, round(median(steps) / SHARE / median(samples)))


def _batches(way: str, dataset: Any, batch_size: int) -> Iterator[Any]:
    """Return an endless iterator over batches."""
    if way == "alone":
        return iter(lambda: 0, None)  # an integer for ever
    if way.startswith("torch"):
        from torch.utils.data import DataLoader

        return iter(DataLoader(dataset, batch_size, num_workers=2))
    from threadloader import ThreadLoader

    threads = {"default": None, "one thread": 1, "two threads": 2}[way]
    return iter(ThreadLoader(dataset, batch_size, threads=threads))


if __name__ == "__main__":
    sys.exit(main())
