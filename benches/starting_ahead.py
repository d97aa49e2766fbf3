"""How soon the first batch of a training epoch comes after validation, with `start` and without.

``python -m benches.starting_ahead``, once with each Python: the results of the others are kept.

Epochs of 20 batches of 32 photos take turns with a validation of 10 such batches.  Before every
second validation ``start()`` is called on the training loader.  Told are the medians and quartiles
of the times from ``iter()`` to the first batch, and of all of epoch and validation.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from pathlib import Path
from typing import Any

from benches.harness.machine import describe, python_label
from benches.harness.tables import align, machine_lines
from benches.workloads.photos import Photos
from threadloader import ThreadLoader

BATCH_SIZE, BATCHES, VALIDATION = 32, 20, 10
MILLI = 1e3
OUTPUT = Path(__file__).parent / "results" / "starting_ahead.json"
WAYS = {"without": False, "with `start()`": True}


def main() -> int:
    """Measure, print and write; return the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m benches.starting_ahead", description=(__doc__ or "").partition("\n")[0]
    )
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--output", type=Path, default=OUTPUT)
    options = parser.parse_args()
    label, machine = python_label(), describe()
    print(machine_lines([(label, machine)]))
    found = measure(options.rounds)
    rows = [[way, *(f"{each:.2f}" for each in times["first"])] for way, times in found.items()]
    print(align(["ms to a first batch", "lower", "median", "upper"], rows))
    path = options.output
    told = json.loads(path.read_text("utf-8")) if path.exists() else {}
    told[label] = {"machine": machine, "times": found}
    path.write_text(json.dumps(told, indent=1) + "\n", encoding="utf-8")
    return 0


def measure(rounds: int) -> dict[str, dict[str, list[float]]]:
    """Return the quartiles of each way's times in ms: to the first batch, and in all."""
    training = ThreadLoader(Photos(BATCH_SIZE * BATCHES), BATCH_SIZE, shuffle=True, seed=1)
    validation = ThreadLoader(Photos(BATCH_SIZE * VALIDATION), BATCH_SIZE, seed=1)
    list(training)  # what is found in a first epoch is found
    times: dict[str, dict[str, list[float]]] = {way: {"first": [], "all": []} for way in WAYS}
    for _ in range(rounds):
        for way, starts in WAYS.items():
            began = time.perf_counter()
            if starts:
                training.start()
            drain(validation)
            asked = time.perf_counter()
            batches = iter(training)
            next(batches)
            first = time.perf_counter()
            drain(batches)
            times[way]["first"].append(MILLI * (first - asked))
            times[way]["all"].append(MILLI * (time.perf_counter() - began))
    return {
        way: {name: statistics.quantiles(each, n=4) for name, each in told.items()}
        for way, told in times.items()
    }


def drain(batches: Any) -> None:
    """Take all batches, and keep none."""
    for _ in batches:
        pass


if __name__ == "__main__":
    raise SystemExit(main())
