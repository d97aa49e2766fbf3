"""The cost of loading for a consumer that is bound by its launches.

``python -m benches.interference 3.11=python3.11 3.13t=python3.13t``

The consumer's step is 4,000 operators of torch's on tensors of one element, as a model is whose
kernels are shorter than their launches.  Meanwhile photos are decoded, as many a step as take a
third of a core: each step takes one batch, whatever loads it.

The ways of loading take turns in one process, in stretches of ``--seconds``, and before and after
each of them the consumer steps alone.  A loader whose turn it is not has its batches ready, and
does nothing.  Told are, relative to steps alone directly before, and to those directly after,

- **step**: the median step of a stretch;
- **with waiting**: the mean step, with the time in which it waited for its batch;

each as the median of all these ratios, and the quartiles; and the 99th percentile of all steps, by
the median alone.  **Alone again** has a stretch as the others have: what it differs from 1 by is
noise.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path
from statistics import mean, median
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from benches.harness import blocks
from benches.harness.asking import (
    ROOT,
    calibrate,
    call,
    describe,
    labelled_python,
    make_photos,
)
from benches.harness.command import command_line, write
from benches.harness.compiling import compiled
from benches.harness.machine import machine_lines
from benches.workloads.catalog import WORKLOADS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

RESULTS = ROOT / "benches" / "results" / "interference.json"
ALONE, TORCH = "alone again", "torch, two processes"
THREADS = {"default": None, "one thread": 1, "two threads": 2}
# torch's first: its processes are forked while there are no threads.
WAYS = (TORCH, *THREADS, ALONE)
LAUNCHES = 4000  # operators a step
SHARE = 3  # loading takes the CPU time of a step, divided by this
WARM_UP = 3.0  # seconds, in which the default finds its number
BEFORE = 0.2  # share of a stretch before it counts
MOST = 1.05  # step beside the default, of the step alone, without a GIL


class Stretch(NamedTuple):
    """Steps in a row; seconds of each."""

    steps: list[float]
    waits: list[float]

    @property
    def with_waiting(self) -> list[float]:
        """What each took from the end of the one before."""
        return [step + wait for step, wait in zip(self.steps, self.waits, strict=True)]


def main() -> int:
    """Measure, print the table, write the file, return 1 where a target is missed."""
    parser = command_line("interference", __doc__)
    parser.add_argument("pythons", nargs="*", type=labelled_python, metavar="LABEL=PYTHON")
    parser.add_argument("--seconds", type=float, default=1.0, help="of a stretch")
    parser.add_argument("--rounds", type=int, default=24)
    parser.add_argument("--output", type=Path, default=RESULTS)
    options = parser.parse_args()
    pythons = dict(options.pythons) or {"this": sys.executable}
    make_photos(list(pythons.values()))
    machine = {label: describe(python) for label, python in pythons.items()}
    print(machine_lines(machine))
    asked = {"seconds": options.seconds, "rounds": options.rounds}
    most = 60 + 4 * len(WAYS) * options.seconds * options.rounds
    found: dict[str, Any] = {}
    for label, python in pythons.items():
        arguments = {"spin": calibrate(python), **asked}
        found[label] = call(python, "benches.interference.measure", limit=most, **arguments)
        found[label]["good"] = _is_good(found[label])
    results = {"machine": machine, **asked, "builds": found}
    table = blocks.interference(results)
    print(table)
    write(options.output, results)
    return int("missed" in table)


def _is_good(found: dict[str, Any]) -> bool:
    """Whether the default disturbs the consumer as little as it should."""
    step = {way: found["ways"][way]["step"]["median"] for way in WAYS}
    if found["has_gil"]:
        return bool(step["default"] <= step[TORCH])
    return bool(step["default"] <= MOST)


def measure(spin: int, seconds: float, rounds: int) -> dict[str, Any]:
    """Let the ways of loading take turns, in a process of their own."""
    import torch

    torch.set_num_threads(1)
    numbers = [torch.zeros(1) for _ in range(8)]

    def step() -> None:
        for _ in range(LAUNCHES // len(numbers)):
            for number in numbers:
                number.add_(1.0)

    dataset = WORKLOADS["photos"].make(1 << 40, spin)
    batch_size = _batch_size(dataset, step)
    batches = {way: _batches(way, dataset, batch_size) for way in WAYS}
    for each in batches.values():
        _steps(step, each, min(WARM_UP, 5 * seconds))
    if compiled:
        return {}
    stretches: list[tuple[str, Stretch]] = []
    threads: list[int] = []  # of the default, at the end of its stretches
    for number in range(rounds):
        turn = number % len(WAYS)
        for way in (*WAYS[turn:], *WAYS[:turn]):
            stretches.append(("", _steps(step, batches[ALONE], seconds)))
            stretches.append((way, _steps(step, batches[way], seconds)))
        threads.append(batches["default"].moment()[0])  # type: ignore[attr-defined]
    stretches.append(("", _steps(step, batches[ALONE], seconds)))
    from threadloader._threads.tuner import gil_is_enabled

    alone = median(second for way, each in stretches if not way for second in each.steps)
    return {
        "has_gil": gil_is_enabled(),
        "batch size": batch_size,
        "step alone": alone,
        "threads of the default": threads,
        "ways": {way: _figures(stretches, way) for way in WAYS},
    }


def _steps(step: Callable[[], None], batches: Iterator[Any], seconds: float) -> Stretch:
    """Step for some seconds; those at the beginning do not count."""
    stretch = Stretch([], [])
    now = time.perf_counter()
    counts, end = now + BEFORE * seconds, now + seconds
    while now < end or not stretch.steps:
        next(batches)
        began = time.perf_counter()
        step()
        ended = time.perf_counter()
        if now >= counts:
            stretch.steps.append(ended - began)
            stretch.waits.append(began - now)
        now = ended
    return stretch


def _figures(stretches: Sequence[tuple[str, Stretch]], way: str) -> dict[str, Any]:
    """Return what steps beside a way of loading took, relative to steps alone."""
    ratios, with_waiting = [], []
    steps: list[float] = []
    waited: list[float] = []
    for number, (name, stretch) in enumerate(stretches):
        if name != way:
            continue
        beside = stretches[number - 1][1], stretches[number + 1][1]
        # One by one: a mean of noisy stretches is no median, and would let all ratios be too low.
        for each in beside:
            ratios.append(median(stretch.steps) / median(each.steps))
            with_waiting.append(mean(stretch.with_waiting) / mean(each.with_waiting))
        alone = mean(median(each.steps) for each in beside)
        steps += [second / alone for second in stretch.steps]
        waited += [second / alone for second in stretch.with_waiting]
    return {
        "step": _quartiles(ratios),
        "with waiting": _quartiles(with_waiting),
        "p99": float(np.quantile(steps, 0.99)),
        "p99 with waiting": float(np.quantile(waited, 0.99)),
        "steps": len(steps),
        "stretches": [round(ratio, 4) for ratio in ratios],
    }


def _quartiles(ratios: Sequence[float]) -> dict[str, float]:
    """Return the median and the quartiles."""
    low, middle, high = (float(each) for each in np.quantile(ratios, (0.25, 0.5, 0.75)))
    return {"median": middle, "low": low, "high": high}


def _batch_size(dataset: Any, step: Callable[[], None]) -> int:
    """Return how many samples take a third of the CPU time of a step."""
    steps, samples = [], []
    for index in range(32):
        began = time.thread_time()
        step()
        steps.append(time.thread_time() - began)
        began = time.thread_time()
        dataset[index]
        samples.append(time.thread_time() - began)
    return max(1, round(median(steps) / SHARE / median(samples)))


def _batches(way: str, dataset: Any, batch_size: int) -> Iterator[Any]:
    """Return an endless iterator over batches."""
    if way == ALONE:
        return iter(lambda: 0, None)  # an integer for ever
    if way == TORCH:
        from torch.utils.data import DataLoader

        return iter(DataLoader(dataset, batch_size, num_workers=2))
    from threadloader import ThreadLoader

    return iter(ThreadLoader(dataset, batch_size, threads=THREADS[way]))


if __name__ == "__main__":
    sys.exit(main())
