"""The rates of the default number of threads, beside every fixed one.

``python -m benches.self_driving 3.11=python3.11 3.13t=python3.13t``

Each workload is loaded with the default, which finds the number of threads while it runs, with
fixed numbers, and by a bare loop.  They take turns in one process: the default loads an epoch from
the beginning, and a second one, as a loader remembers what it found; before and after each, the
others have a short turn.  Three workloads change in mid-epoch, from one kind of samples to another
and back.  Compared are

- **after 5 s**: the default's rate after the first five seconds of a phase, of that of the best
  fixed number for the samples of this phase;
- **first epoch**: its whole first epoch, the search included, of the best fixed number;
- **second epoch**: its second epoch from the beginning on, of the best fixed number;
- **of the loop**: its whole first epoch, of the bare loop.

Of data that changes, the last three are for the whole: the time in which one fixed number loads
the same samples, as many of each kind as the default has loaded, by the time of the default.  The
best number is then one for both kinds.  A fixed number's rates are those of each kind by itself,
without what its start and the changes cost it.

Ratios are to the turn before and to the turn after; of all rounds the median, the least and the
most.  **Noise** is the best fixed number in one turn, of itself in the turn before.
"""

from __future__ import annotations

import math
import sys
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

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
from benches.harness.machine import machine_lines

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    Rates = dict[str, list[float]]  # samples a second by setting, of each kind of samples

RESULTS = ROOT / "benches" / "results" / "self_driving.json"
NAMES = ("photos", "rows", "tensor_rows", "cifar", "text", "empty", "pure_python", "remote")
CHANGING = ("tails", "cache_fills", "rows_then_images", "reads_then_work")
LEAST = {"after 5 s": 0.9, "second epoch": 0.95, "of the loop": 0.97}
HANG_S = 900.0  # for one workload, all rounds
LOOP = "loop"


def main() -> int:
    """Measure, print the table, write the file, return 1 where a target is missed."""
    parser = command_line("self_driving", __doc__)
    parser.add_argument("pythons", nargs="*", type=labelled_python, metavar="LABEL=PYTHON")
    parser.add_argument("--workload", action="append", choices=[*NAMES, *CHANGING])
    parser.add_argument("--seconds", type=float, default=7.0, help="of a phase of a first epoch")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--output", type=Path, default=RESULTS)
    options = parser.parse_args()
    pythons = dict(options.pythons) or {"this": sys.executable}
    make_photos(list(pythons.values()))
    machine = {label: describe(python) for label, python in pythons.items()}
    print(machine_lines(machine))
    asked = {"seconds": options.seconds, "rounds": options.rounds}
    found: dict[str, dict[str, Any]] = {}
    for label, python in pythons.items():
        spin = calibrate(python)
        for name in options.workload or (*NAMES, *CHANGING):
            arguments = {"name": name, "spin": spin, **asked}
            told = call(python, "benches.harness.turns.take_turns", limit=HANG_S, **arguments)
            found.setdefault(name, {})[label] = summary(told)
            print(f"  {name} {label}", file=sys.stderr, flush=True)
    results = {"machine": machine, "least": LEAST, **asked, "workloads": found}
    table = blocks.self_driving(results)
    print(table)
    write(options.output, results)
    return int("missed" in table)


def summary(told: dict[str, Any]) -> dict[str, Any]:
    """Return the ratios, with what they are made of.

    Args:
        told: What `take_turns` returned.
    """
    kinds, passes, epochs = told["kinds"], told["passes"], told["epochs"]
    usual = {setting: _usual(passes, setting) for setting in passes[0]}
    fixed = [setting for setting in usual if setting != LOOP]
    best_of = [max(fixed, key=lambda each: usual[each][kind]) for kind in range(len(kinds))]
    # Epoch after epoch: each comes after the pass of the same number, and before the next one.
    firsts = list(enumerate(epochs))[::2]
    seconds = list(enumerate(epochs))[1::2]
    loaded = [_loaded(epoch, len(kinds)) for _, epoch in firsts]
    for_all = [sum(samples) for samples in zip(*loaded, strict=True)]
    best = min(fixed, key=lambda each: _seconds(usual[each], for_all))
    phases = []
    for number, phase in enumerate(epochs[0]["phases"]):
        kind = phase["kind"]
        loads = [(at, epoch["phases"][number]) for at, epoch in firsts]
        settled = [
            each["settled"] / rates[kind]
            for at, each in loads
            for rates in _beside(passes, best_of[kind], at)
        ]
        threads = [each["threads"] for _, each in loads]
        about = {"kind": kinds[kind], "best": best_of[kind], "threads": threads}
        phases.append(about | {"after 5 s": _spread(settled)})
    return {
        "best": best,
        "phases": phases,
        "ratios": {
            "first epoch": _spread(_of(passes, best, firsts)),
            "second epoch": _spread(_of(passes, best, seconds)),
            "of the loop": _spread(_of(passes, LOOP, firsts)),
            "noise": _spread(_noise(passes, best, for_all)),
        },
        "passes": passes,
        "epochs": [epoch["phases"] for epoch in epochs],
    }


def _usual(passes: Sequence[Rates], setting: str) -> list[float]:
    """Return a setting's rates, by kind: medians over its turns."""
    return [median(rates) for rates in zip(*(turn[setting] for turn in passes), strict=True)]


def _loaded(epoch: dict[str, Any], kinds: int) -> list[int]:
    """Return how many samples of each kind were loaded in an epoch."""
    return [
        sum(phase["samples"] for phase in epoch["phases"] if phase["kind"] == kind)
        for kind in range(kinds)
    ]


def _seconds(rates: Sequence[float], samples: Sequence[int]) -> float:
    """Return the time that samples of each kind take at these rates."""
    return math.fsum(n / rate for n, rate in zip(samples, rates, strict=True))


def _of(
    passes: Sequence[Rates], setting: str, epochs: Sequence[tuple[int, dict[str, Any]]]
) -> Iterable[float]:
    """Yield the times of a setting for the samples of each epoch, by the time of the epoch."""
    for number, epoch in epochs:
        took = math.fsum(phase["seconds"] for phase in epoch["phases"])
        for rates in _beside(passes, setting, number):
            yield _seconds(rates, _loaded(epoch, len(rates))) / took


def _beside(passes: Sequence[Rates], setting: str, number: int) -> list[list[float]]:
    """Return a setting's rates, by kind, in its turns before and after an epoch.

    They are not averaged: of noisy turns, a mean is no median.
    """
    return [turn[setting] for turn in passes[number : number + 2]]


def _noise(passes: Sequence[Rates], setting: str, samples: Sequence[int]) -> Iterable[float]:
    """Yield what a setting reaches in its turns, by what it did in the turns before."""
    turns = [_seconds(turn[setting], samples) for turn in passes]
    return [before / after for before, after in pairwise(turns)]


def _spread(ratios: Iterable[float]) -> dict[str, float]:
    """Return the median of the rounds, the least and the most."""
    found = sorted(ratios)
    return {"median": median(found), "low": found[0], "high": found[-1]}


if __name__ == "__main__":
    sys.exit(main())
