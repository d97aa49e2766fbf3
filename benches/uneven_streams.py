"""What it costs that the ranks of an iterable dataset agree on each step.

``python -m benches.uneven_streams``

Real processes, ranks of torch.distributed (gloo on loopback), each with a stream of small rows.
`short` does not agree, `drop` does, and `pad` only tells the others; they take turns, several
epochs each.  Once the loop takes some time for each step, as a training does: then the agreement
runs ahead of it.  And once it takes none, and so waits for each outcome: that is the time of an
agreement.  A barrier before each epoch, none in it.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import statistics
import subprocess
import sys
import time
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from benches.harness.machine import describe, python_label
from benches.harness.tables import align, machine_lines
from threadloader import ThreadLoader

if TYPE_CHECKING:
    from collections.abc import Iterator

WAYS: tuple[Literal["short", "drop", "pad"], ...] = ("short", "drop", "pad")
MICRO = 1e6


class Rows:
    """As many rows for each rank."""

    def __init__(self, rows: int) -> None:
        self.rows = rows

    def shard(self, rank: int, world_size: int, epoch: int) -> Rows:
        """Return the same rows for each rank."""
        return self

    def __iter__(self) -> Iterator[Any]:
        row = np.zeros(64, np.float32)
        for _ in range(self.rows):
            yield row


def main() -> int:
    """Run the ranks, print the table, return the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m benches.uneven_streams", description=(__doc__ or "").partition("\n")[0]
    )
    parser.add_argument("--ranks", type=int, nargs="+", default=[2, 4])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=300, help="in one epoch")
    parser.add_argument("--step-ms", type=float, nargs="+", default=[0.0, 5.0])
    options = parser.parse_args()
    if "BENCH_OPTIONS" in os.environ:
        return _be_a_rank(json.loads(os.environ["BENCH_OPTIONS"]))
    print(machine_lines([(python_label(), describe())]))
    rows = []
    for world_size in options.ranks:
        for step_ms in options.step_ms:
            told = _ranks(
                world_size,
                {"rounds": options.rounds, "steps": options.steps, "seconds": step_ms / 1e3},
            )
            for way in WAYS:
                waited, cpu = zip(*told[way], strict=True)
                rows.append(
                    [str(world_size), f"{step_ms:g}", way]
                    + [f"{each:.0f}" for each in (statistics.median(waited), min(waited))]
                    + [f"{each:.0f}" for each in (statistics.median(cpu), min(cpu))]
                )
    head = ["ranks", "step, ms", "uneven", "us in next()", "least", "CPU us a step", "least"]
    print(align(head, rows))
    return 0


def _ranks(world_size: int, options: dict[str, Any]) -> dict[str, list[tuple[float, float]]]:
    """Run processes; return what rank 0 measured: us in ``next()``, and of CPU, for each epoch."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    processes = [
        subprocess.Popen(
            [sys.executable, "-m", "benches.uneven_streams"],
            env={
                **os.environ,
                "BENCH_OPTIONS": json.dumps(options),
                "MASTER_ADDR": "127.0.0.1",
                "MASTER_PORT": str(port),
                "RANK": str(rank),
                "WORLD_SIZE": str(world_size),
            },
            stdout=subprocess.PIPE if rank == 0 else subprocess.DEVNULL,
        )
        for rank in range(world_size)
    ]
    told, _ = processes[0].communicate()
    if any(process.wait() for process in processes):
        raise SystemExit(1)
    result: dict[str, list[tuple[float, float]]] = json.loads(told)
    return result


def _be_a_rank(options: dict[str, Any]) -> int:
    import torch  # only the ranks need it

    distributed = torch.distributed
    torch.set_num_threads(1)
    distributed.init_process_group("gloo")
    loaders = {
        way: ThreadLoader(
            Rows(32 * options["steps"]), 32, threads=1, shard="auto", uneven=way, seed=1
        )
        for way in WAYS
    }
    told: dict[str, list[tuple[float, float]]] = {way: [] for way in loaders}
    for number in range(options["rounds"] + 1):
        for way, loader in loaders.items():
            distributed.barrier()
            measured = _epoch(loader, options["seconds"])
            if number:  # the first warms up
                told[way].append(measured)
    distributed.barrier()
    if distributed.get_rank() == 0:
        print(json.dumps(told))
    distributed.destroy_process_group()
    return 0


def _epoch(loader: ThreadLoader[Any], seconds: float) -> tuple[float, float]:
    """Return the us that a step waits in ``next()``, and that it takes of CPU, over an epoch."""
    waited, steps, cpu = 0.0, 0, time.process_time()
    before = time.perf_counter()
    for _ in loader:
        waited += time.perf_counter() - before
        steps += 1
        if seconds:
            time.sleep(seconds)
        before = time.perf_counter()
    return waited / steps * MICRO, (time.process_time() - cpu) / steps * MICRO


if __name__ == "__main__":
    sys.exit(main())
