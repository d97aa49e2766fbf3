"""Whether the verdict names the cause: loads that are real, each with one cause built in.

``python -m benches.verdicts``, once with each Python.

In each load one cause is ten times all others together.  Told is how many of ``--rounds`` epochs
were given each verdict.  On a machine that is busy with other work a verdict may be "unknown";
another cause than the right one is a fault.
"""

from __future__ import annotations

import sys
import threading
import time
import warnings
import zlib
from collections import Counter
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from benches.harness.command import command_line
from benches.harness.tables import align
from threadloader import SlowLoadingWarning, ThreadLoader
from threadloader._threads.tuner import gil_is_enabled

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

DATA = bytes(1 << 20)
SECONDS = 0.02  # that the cause takes, each time
RIGHT = 0.9  # of the epochs, at the least
_lock = threading.Lock()


class Samples:
    """Sample ``i`` is what ``make`` returns for it."""

    def __init__(self, make: Callable[[int], Any] = int, size: int = 64) -> None:
        self.make = make
        self.size = size

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, index: int) -> Any:
        return self.make(index)


def _waits(index: int) -> int:
    time.sleep(SECONDS)
    return index


def _waits_for_a_lock(index: int) -> int:
    with _lock:
        return _waits(index)


def _computes(index: int) -> int:
    end = time.thread_time() + SECONDS
    while time.thread_time() < end:
        zlib.crc32(DATA)  # without the GIL
    return index


def _computes_in_python(index: int) -> int:
    end = time.thread_time() + SECONDS
    while time.thread_time() < end:
        sum(range(1000))
    return index


class SlowSampler:
    """Batches of one sample, each drawn slowly."""

    def __len__(self) -> int:
        return 64

    def __iter__(self) -> Iterator[list[int]]:
        return ([_waits(number)] for number in range(64))


def _collate_slowly(samples: list[Any]) -> Any:
    time.sleep(SECONDS)
    return samples


class Load(NamedTuple):
    """A loader, and how long its loop takes for a batch."""

    right: str  # verdict
    loader: Callable[[], ThreadLoader[Any]]
    step: float = 0.0  # seconds


LARGE = np.ones(16 << 20, np.uint8)
HELD = "gil-bound" if gil_is_enabled() else "cpu-bound"
LOADS = {
    "a slow loop": Load("consumer-bound", lambda: ThreadLoader(Samples(), 1, threads=1), SECONDS),
    "samples that wait, no thread": Load(
        "waiting", lambda: ThreadLoader(Samples(_waits), 4, threads=0)
    ),
    "samples that wait, 4 threads": Load(
        "waiting", lambda: ThreadLoader(Samples(_waits), 4, threads=4)
    ),
    "samples that wait for a lock": Load(
        "waiting", lambda: ThreadLoader(Samples(_waits_for_a_lock), 4, threads=4)
    ),
    "samples that compute, no thread": Load(
        "cpu-bound", lambda: ThreadLoader(Samples(_computes), 4, threads=0)
    ),
    "samples that compute, 1 thread": Load(
        "cpu-bound", lambda: ThreadLoader(Samples(_computes), 4, threads=1)
    ),
    "samples in pure Python, 4 threads": Load(
        HELD, lambda: ThreadLoader(Samples(_computes_in_python, 128), 4, threads=4)
    ),
    "large samples that are there": Load(
        "memory-bound", lambda: ThreadLoader(Samples(lambda _: LARGE), 4, threads=1)
    ),
    "a slow sampler": Load(
        "sampler-bound",
        lambda: ThreadLoader(Samples(), batch_sampler=SlowSampler(), threads=4),
    ),
    "a slow collate function": Load(
        "collate-bound", lambda: ThreadLoader(Samples(), 4, threads=4, collate_fn=_collate_slowly)
    ),
    "an iterable that waits": Load(
        "waiting", lambda: ThreadLoader(map(_waits, range(64)), 4, threads=1)
    ),
}


def main() -> int:
    """Ask for verdicts, print the table, return 1 where too few are right or any is wrong."""
    parser = command_line("verdicts", __doc__)
    parser.add_argument("--rounds", type=int, default=10)
    rounds = parser.parse_args().rounds
    warnings.simplefilter("ignore", SlowLoadingWarning)
    told: dict[str, Counter[str]] = {name: Counter() for name in LOADS}
    for _ in range(rounds):
        for name, load in LOADS.items():
            with load.loader() as loader:
                for _ in loader:
                    time.sleep(load.step)
                told[name][loader.verdict().kind] += 1
    missed, rows = 0, []
    for name, load in LOADS.items():
        counts = told[name]
        right, wrong = counts[load.right], rounds - counts[load.right] - counts["unknown"]
        missed += right < RIGHT * rounds or wrong > 0
        others = ", ".join(f"{kind} {n}" for kind, n in counts.items() if kind != load.right)
        rows.append([name, load.right, f"{right} of {rounds}", others or "-"])
    print(f"Python {sys.version.split()[0]}, {'with' if gil_is_enabled() else 'without'} a GIL")
    print(align(["load", "right", "told", "told instead"], rows))
    return 1 if missed else 0


if __name__ == "__main__":
    raise SystemExit(main())
