"""What the default number of threads reaches, beside every fixed one.

``python -m benches.self_driving 3.11=python3.11 3.13t=python3.13t``

Each workload is loaded with the default, which finds the number of threads while it runs, with
fixed numbers, and by a bare loop.  Four workloads change in mid-epoch.  A setting loads for
``--seconds``, and then an epoch more, as a loader remembers what it found; settings take turns, in
``--rounds``.  Compared are

- **settled**: the rate after the first five seconds, of the best fixed number's;
- **second epoch**: the rate from its beginning on, of the best fixed number's second epoch;
- **of the loop**: the rate of the whole, of the bare loop's.

The number of threads that might run, every half second, is in the JSON.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from itertools import chain, repeat
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

import numpy as np

from benches.harness.builds import labelled_python
from benches.harness.fresh_process import ROOT, calibrate, describe, make_photos, run_module
from benches.harness.tables import align, machine_lines
from benches.workloads.catalog import WORKLOADS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

RESULTS = ROOT / "benches" / "results" / "self_driving.json"
NAMES = ("photos", "rows", "tensor_rows", "cifar", "text", "empty", "pure_python", "remote")
FIXED = (0, 1, 2, 32, 128)
ENDLESS = 1 << 40  # samples: an epoch ends by time
LENGTH = 1 << 20  # samples of the workloads that hold their data, of which epochs follow each other
WARM_UP = 5.0  # seconds in which the default may still look for its number
STEP = 0.5  # seconds between two looks at the number of threads
CHANGE = 3.0  # seconds after which data changes, and changes back
LEAST = {"settled": 0.9, "second epoch": 0.95, "of the loop": 0.97}


def main() -> int:
    """Measure, print the table, write the file, return 1 where a target is missed."""
    parser = argparse.ArgumentParser(
        prog="python -m benches.self_driving", description=(__doc__ or "").partition("\n")[0]
    )
    parser.add_argument("pythons", nargs="*", type=labelled_python, metavar="LABEL=PYTHON")
    parser.add_argument("--workload", action="append", choices=[*NAMES, *CHANGING])
    parser.add_argument("--seconds", type=float, default=9.0, help="of a first epoch")
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--output", type=Path, default=RESULTS)
    parser.add_argument("--child", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        print(json.dumps(_measure(**json.loads(options.child))))
        return 0
    pythons = dict(options.pythons) or {"this": sys.executable}
    make_photos(list(pythons.values()))
    print(machine_lines([(label, describe(python)) for label, python in pythons.items()]))
    found: dict[str, dict[str, Any]] = {}
    for label, python in pythons.items():
        spin = calibrate(python)
        for name in options.workload or (*NAMES, *CHANGING):
            told = _rounds(python, name, spin, options.seconds, options.rounds)
            found.setdefault(name, {})[label] = told
            print(f"  {name} {label}: {told['ratios']}", file=sys.stderr, flush=True)
    rows, missed = [], 0
    for name, labels in found.items():
        for label, told in labels.items():
            cells = [f"{name} {label}", str(told["best"])]
            for what, ratio in told["ratios"].items():
                good = ratio >= LEAST[what]
                missed += not good
                cells.append(f"{ratio:.2f}{'' if good else ' MISSED'}")
            rows.append([*cells, str(told["threads"][-1][1])])
    print(align(["", "best fixed", *LEAST, "threads at the end"], rows))
    machine = {label: describe(python) for label, python in pythons.items()}
    options.output.write_text(json.dumps({"machine": machine, "workloads": found}, indent=1) + "\n")
    return 1 if missed else 0


def _rounds(python: str, name: str, spin: int, seconds: float, rounds: int) -> dict[str, Any]:
    """Measure all settings of one workload, each in a process of its own, turn by turn."""
    settings = [None, *(each for each in FIXED if each <= 2 or name in WAITING), "loop"]
    told: dict[str, list[Any]] = {str(setting): [] for setting in settings}
    for _ in range(rounds):
        for setting in settings:
            asked = {"name": name, "setting": setting, "spin": spin, "seconds": seconds}
            answer = run_module(python, "benches.self_driving", "--child", json.dumps(asked))
            told[str(setting)].append(json.loads(answer))
    rates = {
        what: {
            setting: median(each[what] for each in each_round)
            for setting, each_round in told.items()
        }
        for what in ("settled", "second epoch", "whole")
    }
    fixed = [setting for setting in told if setting not in ("None", "loop")]
    best = max(fixed, key=lambda setting: rates["settled"][setting])
    second = max(rates["second epoch"][setting] for setting in fixed)
    ratios = {
        "settled": rates["settled"]["None"] / rates["settled"][best],
        "second epoch": rates["second epoch"]["None"] / second,
        "of the loop": rates["whole"]["None"] / rates["whole"]["loop"],
    }
    return {"best": best, "ratios": ratios, "rates": rates, "threads": told["None"][-1]["threads"]}


def _measure(name: str, setting: int | str | None, spin: int, seconds: float) -> dict[str, Any]:
    """Load one workload with one setting; return its rates, in samples a second."""
    import torch

    torch.set_num_threads(1)  # as in torch's own workers
    dataset, batch_size, collate_fn = _workload(name, spin)
    if setting == "loop":
        return _timed(_Loop(dataset, batch_size, collate_fn), batch_size, seconds, lambda: 1)
    from threadloader import ThreadLoader

    given = {} if setting is None else {"threads": setting}
    with ThreadLoader(dataset, batch_size, collate_fn=collate_fn, **given) as loader:  # type: ignore[arg-type]
        told = _timed(loader, batch_size, seconds, lambda: loader.statistics().running)
        again = _timed(loader, batch_size, min(3.0, seconds), lambda: 0)
        return told | {"second epoch": again["whole"]}


def _timed(
    batches: Any, batch_size: int, seconds: float, threads: Callable[[], int]
) -> dict[str, Any]:
    """Iterate for some seconds; return the rates, and the threads that ran at each step."""
    ran, samples, settled_from, settled_at = [], 0, 0, 0.0
    started = seen = now = time.perf_counter()
    for _ in chain.from_iterable(repeat(batches)):  # epoch after epoch, where they are short
        samples += batch_size
        now = time.perf_counter()
        if now - seen >= STEP:
            seen = now
            ran.append((round(now - started, 1), threads()))
        if not settled_at and now - started >= min(WARM_UP, seconds / 2):
            settled_from, settled_at = samples, now
        if now - started >= seconds:
            break
    whole = samples / (now - started)
    settled = (samples - settled_from) / (now - settled_at) if now > settled_at else whole
    return {"whole": whole, "settled": settled, "second epoch": whole, "threads": ran or [(0, 0)]}


class _Loop:
    """Batches of a loop without a loader."""

    def __init__(self, dataset: Any, batch_size: int, collate_fn: Any) -> None:
        from torch.utils.data import default_collate

        self._dataset, self._batch_size = dataset, batch_size
        self._collate = collate_fn or default_collate

    def __iter__(self) -> Iterator[Any]:
        dataset, size = self._dataset, self._batch_size
        for start in range(0, len(dataset), size):
            yield self._collate([dataset[index] for index in range(start, start + size)])


def _workload(name: str, spin: int) -> tuple[Any, int, Any]:
    """Return the dataset, the batch size, and the collate function."""
    if name in CHANGING:
        dataset, batch_size = CHANGING[name]
        return dataset(), batch_size, None
    workload = WORKLOADS[name]
    return workload.make(LENGTH, spin), workload.batch_size, workload.collate_fn()


class Changing:
    """A dataset of two kinds of samples that take turns, by the clock: 3 s each."""

    def __init__(self) -> None:
        self._began = time.perf_counter()

    def __len__(self) -> int:
        return ENDLESS

    def __getitem__(self, index: int) -> Any:
        first = int((time.perf_counter() - self._began) / CHANGE) % 2 == 0
        return (self.first if first else self.second)(index), index % 100

    def first(self, index: int) -> Any:
        """Return a sample of the first kind."""
        raise NotImplementedError

    def second(self, index: int) -> Any:
        """Return a sample of the second kind."""
        raise NotImplementedError


def _sorted(index: int, length: int = 20_000) -> Any:
    """Work some 0.3 ms without the GIL."""
    return np.sort(np.roll(_NUMBERS[:length], index)).sum()


_NUMBERS = np.random.default_rng(0).random(20_000)


class CacheFills(Changing):
    """Reads of 5 ms, and the same from a cache."""

    def first(self, index: int) -> Any:
        """Wait."""
        time.sleep(0.005)
        return np.float32(index)

    def second(self, index: int) -> Any:
        """Return at once."""
        return np.float32(index)


class RowsThenImages(Changing):
    """Rows of microseconds, and samples of 0.3 ms that release the GIL."""

    def first(self, index: int) -> Any:
        """Return at once."""
        return np.float64(index)

    def second(self, index: int) -> Any:
        """Compute."""
        return _sorted(index)


class ReadsThenWork(Changing):
    """Reads of 5 ms, and samples of 0.3 ms that release the GIL."""

    def first(self, index: int) -> Any:
        """Wait."""
        time.sleep(0.005)
        return np.float64(index)

    def second(self, index: int) -> Any:
        """Compute."""
        return _sorted(index)


class Tails(Changing):
    """Reads of 5 ms; one in a hundred takes twenty times as long."""

    def first(self, index: int) -> Any:
        """Wait."""
        time.sleep(0.1 if index % 100 == 7 else 0.005)
        return np.float32(index)

    second = first


CHANGING: dict[str, tuple[type[Changing], int]] = {
    "cache_fills": (CacheFills, 64),
    "rows_then_images": (RowsThenImages, 64),
    "reads_then_work": (ReadsThenWork, 64),
    "tails": (Tails, 64),
}
WAITING: Sequence[str] = ("remote", "cache_fills", "reads_then_work", "tails")


if __name__ == "__main__":
    sys.exit(main())
