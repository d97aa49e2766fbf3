"""The cost of a list of millions of strings, with worker processes and with threads.

``python -m benches.symptoms``, once with each Python: the results of the others are kept.

Memory: of all processes together (their proportional set sizes, so that shared pages count once),
at the end of a shuffled epoch over 5 million strings.  Start: from ``iter()`` to the first batch of
an epoch over 1.2 million, the median of five epochs.  Each is measured in a fresh process.
"""

from __future__ import annotations

import statistics
import sys
import time
from pathlib import Path
from typing import Any

from torch.utils.data import DataLoader

from benches.harness import blocks
from benches.harness.asking import call
from benches.harness.command import command_line, kept_in, write
from benches.harness.machine import describe, machine_lines, python_label
from benches.harness.usage import measure_pss_mib
from benches.workloads.indices import Paths
from threadloader import ThreadLoader

BATCH_SIZE, EPOCHS = 256, 5
STRINGS, STARTED = 5_000_000, 1_200_000
MILLI = 1e3
SECONDS = 600  # that one measurement takes at the most
OUTPUT = Path(__file__).parent / "results" / "symptoms.json"
METHODS = {"torch, fork": "fork", "torch, forkserver": "forkserver", "torch, spawn": "spawn"}
OURS = "threadloader"
WORKERS = (0, 4, 8)


def main() -> int:
    """Measure, print and write; return the exit code."""
    parser = command_line("symptoms", __doc__)
    parser.add_argument("--output", type=Path, default=OUTPUT)
    options = parser.parse_args()
    label, machine = python_label(), describe()
    print(machine_lines())
    found: dict[str, Any] = {
        figure: {
            name: {workers: ask(figure, name, workers) for workers in WORKERS}
            for name in (*METHODS, OURS)
        }
        for figure in ("mib", "ms")
    }
    for figure in found:
        print(f"{figure}\n{blocks.symptoms({label: found}, figure)}")
    told = kept_in(options.output)
    told[label] = {"machine": machine, **found}
    write(options.output, told)
    return 0


def ask(figure: str, name: str, workers: int) -> float:
    """Measure in a fresh process."""
    arguments = {"figure": figure, "name": name, "workers": workers}
    return float(call(sys.executable, "benches.symptoms.measure", limit=SECONDS, **arguments))


def measure(figure: str, name: str, workers: int) -> float | None:
    """Return the memory of all processes in MiB, or the milliseconds to a first batch."""
    dataset: Any = Paths(STRINGS if figure == "mib" else STARTED)
    loader: Any
    if name == OURS:
        loader = ThreadLoader(dataset, BATCH_SIZE, shuffle=True, threads=workers)
    else:
        method = METHODS[name] if workers else None
        arguments: dict[str, Any] = {"num_workers": workers, "multiprocessing_context": method}
        loader = DataLoader(dataset, BATCH_SIZE, shuffle=True, **arguments)
    if figure == "mib":
        memory = None
        for number, _ in enumerate(loader, 1):
            if number == len(loader):
                memory = measure_pss_mib()
        return memory
    return statistics.median(first_batch_ms(loader) for _ in range(EPOCHS))


def first_batch_ms(loader: Any) -> float:
    """Return the milliseconds from ``iter()`` to the first batch."""
    started = time.perf_counter()
    batches = iter(loader)
    next(batches)
    return MILLI * (time.perf_counter() - started)


if __name__ == "__main__":
    raise SystemExit(main())
