"""How long it takes to go on in the middle of an epoch, and to agree with other ranks before it.

``python -m benches.resuming``

A loader is given a state of the middle of an epoch, and asked for its next batch: of 256
samples, as one of 4 ranks, without threads.  Samples are numbers, so that nothing else takes time.
Ranks agree in processes of this machine, over the store of torch.distributed.
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
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from benches.harness.machine import describe, python_label
from benches.harness.tables import align, machine_lines
from threadloader import ThreadLoader, TokenBatches
from threadloader.datasets import Mixture

if TYPE_CHECKING:
    from collections.abc import Callable

BATCH_SIZE, RANKS = 256, 4
MILLI = 1e3
OUTPUT = Path(__file__).parent / "results" / "resuming.json"


def main() -> int:
    """Measure, print and write; return the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m benches.resuming", description=(__doc__ or "").partition("\n")[0]
    )
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--output", type=Path, default=OUTPUT)
    parser.add_argument("--rank", action="store_true", help="be a rank that agrees with others")
    options = parser.parse_args()
    if options.rank:
        print(json.dumps(agreement_of_a_rank(options.rounds)))
        return 0
    machine = describe()
    print(machine_lines([(python_label(), machine)]))
    found = {name: going_on(kind, options.rounds) for name, kind in KINDS.items()}
    agreeing = {str(ranks): agreement(ranks, options.rounds) for ranks in (2, 4)}
    rows = [[name, f"{each['ms']:.2f}", f"{each['bytes']:.0f}"] for name, each in found.items()]
    print(align(["", "ms to a batch", "bytes of the state"], rows))
    print(agreeing)
    told = {"machine": machine, "going on": found, "agreement": agreeing}
    options.output.write_text(json.dumps(told, indent=1) + "\n", encoding="utf-8")
    return 0


class Numbers:
    """A dataset of so many numbers."""

    def __init__(self, samples: int) -> None:
        self.samples = samples

    def __len__(self) -> int:
        return self.samples

    def __getitem__(self, index: int) -> int:
        return index


class Striding:
    """A sampler of the user's, without a state."""

    def __init__(self, samples: int) -> None:
        self.samples = samples

    def __iter__(self) -> Any:
        return iter(range(self.samples))

    def __len__(self) -> int:
        return self.samples


def _by_cost(samples: int) -> dict[str, Any]:
    lengths = np.random.default_rng(0).integers(16, 272, samples, np.uint16)
    return {"batch_sampler": TokenBatches(lengths, 1 << 15)}


def _mixed(samples: int) -> dict[str, Any]:
    sources = {str(n): (Numbers(samples), 1 + n) for n in range(8)}
    return {"dataset": Mixture(sources, stop="repeat", length=samples)}


def _weighted(samples: int) -> dict[str, Any]:
    import torch

    weights = torch.ones(samples, dtype=torch.float64)
    return {"sampler": torch.utils.data.WeightedRandomSampler(weights, samples)}  # type: ignore[arg-type]


# The samples, and the arguments of a loader of so many.
KINDS: dict[str, tuple[int, Callable[[int], dict[str, Any]]]] = {
    "sequential, 1,000,000,000": (10**9, lambda _: {}),
    '`shuffle="keyed"`, 1,000,000,000': (10**9, lambda _: {"shuffle": "keyed"}),
    "`Mixture` of 8, 1,000,000,000": (10**9, _mixed),
    "`TokenBatches`, 100,000,000": (10**8, _by_cost),
    "`shuffle=True`, 10,000,000": (10**7, lambda _: {"shuffle": True}),
    "`WeightedRandomSampler`, 10,000,000": (10**7, _weighted),
    "a sampler of yours without a state, 10,000,000": (
        10**7,
        lambda samples: {"sampler": Striding(samples)},
    ),
}


def going_on(kind: tuple[int, Callable[[int], dict[str, Any]]], rounds: int) -> dict[str, float]:
    """Return the least time from a state to a batch, and the state's bytes."""
    samples, made = kind

    def loader() -> ThreadLoader[Any]:
        options = {"dataset": Numbers(samples), **made(samples)}
        if "batch_sampler" not in options:
            options["batch_size"] = BATCH_SIZE
        return ThreadLoader(**options, seed=17, shard=(1, RANKS), threads=0, output="numpy")

    begun = loader()
    next(iter(begun))
    state = begun.state_dict()
    lane = state["lanes"][0]
    if "mark" in lane:
        lane["mark"]["states"]["iterator"]["pool"] = 1000
    else:
        lane["batches"] = samples // (2 * BATCH_SIZE * RANKS)
        lane.pop("check", None)
        state.pop("entries")
    seconds, size = [], 0
    for _ in range(rounds):
        again = loader()  # not counted: most of it is what a user's own objects take
        start = time.perf_counter()
        again.load_state_dict(state)
        next(iter(again))
        seconds.append(time.perf_counter() - start)
        size = len(json.dumps(again.state_dict()))
    return {"ms": min(seconds) * MILLI, "bytes": float(size)}


def agreement(ranks: int, rounds: int) -> dict[str, float]:
    """Return the median of the slowest rank's times to a first batch, in ms."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    common = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": str(ranks)}
    command = [sys.executable, "-m", "benches.resuming", "--rank", f"--rounds={rounds}"]
    started = [
        subprocess.Popen(
            command, env=os.environ | common | {"RANK": str(rank)}, stdout=subprocess.PIPE
        )
        for rank in range(ranks)
    ]
    told = [json.loads(process.communicate()[0]) for process in started]
    return {name: max(each[name] for each in told) for name in told[0]}


def agreement_of_a_rank(rounds: int) -> dict[str, float]:
    """Return this rank's medians: to a first batch, to one of a later epoch, and without ranks."""
    import torch.distributed as dist

    dist.init_process_group("gloo")
    found: dict[str, list[float]] = {"first batch": [], "next epoch": [], "not sharded": []}
    for _ in range(rounds):
        sharded = ThreadLoader(range(10**6), BATCH_SIZE, seed=1, shard="auto", threads=0)
        whole = ThreadLoader(range(10**6), BATCH_SIZE, seed=1, threads=0)
        for name, loader in (
            ("first batch", sharded),
            ("next epoch", sharded),
            ("not sharded", whole),
        ):
            dist.barrier()
            start = time.perf_counter()
            next(iter(loader))
            found[name].append(time.perf_counter() - start)
    dist.destroy_process_group()
    return {name: statistics.median(seconds) * MILLI for name, seconds in found.items()}


if __name__ == "__main__":
    raise SystemExit(main())
