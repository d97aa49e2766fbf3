"""A model of scaling: from the serial parts measured here, what 1 to 128 threads would reach.

``python -m benches.scaling 3.11=python3.11 3.13t=python3.13t``

A batch costs time in three places.  What is done in one thread at a time bounds the rate however
many threads there are:

- the **consumer**: its thread draws batches of indices (the planner), waits for the next batch and
  hands it over.  Measured as the CPU time of the consumer's thread while others load;
- the **shared part of a worker's step**: locks of the ring, of the window and of tickets.  Measured
  as the CPU time that a batch of samples that cost nothing takes in the workers' threads, less
  what its samples take in a loop: an upper bound, as not all of that is done under a lock;
- **memory**: bytes written a batch, by the bandwidth of all cores together.

What is done by each worker for itself is divided among them, on as many cores as there are.  So

    rate(n) = min(n x rate of one thread, 1 / consumer, 1 / shared part, bandwidth / bytes)

in samples a second.  With a GIL, what holds it is a serial part as well: the CPU time of a sample
less the part in which the GIL is released, which is measured as what two threads gain.  The model
is compared with the cores at hand, and says what limits first and what would lift it.
"""

from __future__ import annotations

import argparse
import json
import sys
import threading
import time
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from benches.harness.builds import labelled_python, thread_counts
from benches.harness.fresh_process import ROOT, describe, make_photos, run_module
from benches.harness.machine import gil_enabled, usable_cores
from benches.workloads.catalog import WORKLOADS

if TYPE_CHECKING:
    from collections.abc import Sequence

RESULTS = ROOT / "benches" / "results" / "scaling.json"
THREADS = (1, 2, 4, 8, 16, 32, 64, 128)
NAMES = ("photos", "pure_python", "text", "rows", "bandwidth", "empty")
TRIES = 5  # of each measurement
REMEDIES = {
    "one thread": "nothing but more cores: up to 128 threads no serial part is reached",
    "consumer": "larger batches, or several loaders: what is done a batch is done less often",
    "shared part": "larger batches: the locks are taken a few times a batch, not a sample",
    "memory bandwidth": "smaller samples: uint8 instead of float32 is a quarter of the bytes",
    "GIL": "a free-threaded build of Python",
}


@dataclass(frozen=True, slots=True)
class Parts:
    """What a batch of a workload costs, in seconds.

    Args:
        batch_size: Samples in a batch.
        nbytes: That are written for a batch.
        rates: Samples a second by threads, measured here.
        consumer: CPU time of the consumer's thread, a batch.
        total: CPU time of all threads, a batch.
        samples: CPU time of the samples of a batch, in a loop.
    """

    batch_size: int
    nbytes: int
    rates: dict[int, float]
    consumer: float
    total: float
    samples: float


def main() -> int:
    """Measure in each interpreter, write the predictions, print them."""
    parser = argparse.ArgumentParser(
        prog="python -m benches.scaling", description=(__doc__ or "").partition("\n")[0]
    )
    parser.add_argument("builds", nargs="*", type=labelled_python, metavar="label=python")
    parser.add_argument("--seconds", type=float, default=0.5, help="of a try")
    parser.add_argument("--json", type=Path, default=RESULTS, help="file of results")
    parser.add_argument("--measure", action="store_true", help="print this interpreter's parts")
    options = parser.parse_args()
    if options.measure:
        print(json.dumps(measure_all(options.seconds)))
        return 0
    make_photos([python for _, python in options.builds])
    told: dict[str, Any] = {"threads": THREADS, "builds": {}}
    if options.json.exists():  # builds that are not measured now stay
        told["builds"] |= json.loads(options.json.read_text(encoding="utf-8"))["builds"]
    for label, python in options.builds:
        found = json.loads(
            run_module(python, "benches.scaling", "--measure", f"--seconds={options.seconds}")
        )
        told["builds"][label] = predict_all(found) | {"machine": describe(python)}
        for name, model in told["builds"][label]["workloads"].items():
            rates = ", ".join(f"{value:,.0f}" for value in model["predicted"])
            print(f"{label} {name}: {rates}; measured {model['measured']}; {model['limit']}")
    options.json.parent.mkdir(parents=True, exist_ok=True)
    options.json.write_text(json.dumps(told, indent=1) + "\n", encoding="utf-8")
    return 0


def measure_all(seconds: float) -> dict[str, Any]:
    """Measure all parts in this interpreter."""
    cores = usable_cores()
    workloads = {name: asdict(measure_parts(name, seconds)) for name in NAMES}
    return {
        "cores": cores,
        "gil": gil_enabled(),
        # The best, as of the rates: what neighbours on a machine leave of its memory's varies.
        "bandwidth": {
            n: max(copy_rate(n, seconds) for _ in range(TRIES)) for n in thread_counts(cores)
        },
        "workloads": workloads,
    }


def measure_parts(name: str, seconds: float) -> Parts:
    """Measure one workload: rates by threads, and CPU times with all cores busy."""
    from benches.harness.measurement import make_setup
    from benches.harness.record import Question
    from benches.workloads.spin import calibrate

    workload = WORKLOADS[name]
    cores = usable_cores()
    spin = calibrate() if name == "pure_python" else 0
    question = Question(name, "threadloader", 1, seconds, spin)
    alone = make_setup(question, workload)
    loops = min(_loop(alone) for _ in range(TRIES))
    rates, consumer, total, nbytes = {}, 0.0, 0.0, 0
    for threads in thread_counts(cores):
        setup = make_setup(replace(question, workers=threads), workload)
        tries = [_try(setup, seconds) for _ in range(TRIES)]
        # Others on the machine only make a try slower: the best one counts.
        rates[threads] = max(rate for rate, *_ in tries)
        consumer = min(own for _, own, _, _ in tries)
        total = min(cpu for _, _, cpu, _ in tries)
        nbytes = tries[0][3]
    return Parts(workload.batch_size, nbytes, rates, consumer, total, loops)


def _loop(setup: Any) -> float:
    """Return the CPU time of a batch's samples, fetched in a loop."""
    started = time.thread_time()
    for index in range(setup.batch_size):
        setup.dataset[index]
    return time.thread_time() - started


def _try(setup: Any, seconds: float) -> tuple[float, float, float, int]:
    """Return samples a second; CPU seconds a batch of the consumer and of all; bytes of a batch."""
    from benches.harness.delivered import samples_in
    from threadloader import ThreadLoader

    with ThreadLoader(
        setup.dataset,
        setup.batch_size,
        threads=setup.workers,
        collate_fn=setup.collate,
        output="numpy",
    ) as loader:
        batches = iter(loader)
        first = next(batches)
        columns = first if isinstance(first, (tuple, list)) else (first,)
        nbytes = sum(np.asarray(column).nbytes for column in columns)
        del first, columns
        samples, count, batch = 0, 0, None
        own, cpu, started = time.thread_time(), time.process_time(), time.perf_counter()
        while time.perf_counter() - started < seconds:
            for batch in batches:
                samples += samples_in(batch)
                count += 1
                if time.perf_counter() - started >= seconds:
                    break
            else:
                batches = iter(loader)
        elapsed = time.perf_counter() - started
        own, cpu = time.thread_time() - own, time.process_time() - cpu
        del batch, batches
    return samples / elapsed, own / count, cpu / count, nbytes


def copy_rate(threads: int, seconds: float) -> float:
    """Return the bytes a second that so many threads copy, from blocks beyond the caches."""
    block = 1 << 24
    blocks = [np.ones((8, block // 8)) for _ in range(threads)]
    targets = [np.ones((2, block // 8)) for _ in range(threads)]
    copied = [0] * threads
    barrier = threading.Barrier(threads)

    def copy(number: int) -> None:
        barrier.wait()
        end = time.perf_counter() + seconds
        turn = 0
        while time.perf_counter() < end:
            np.copyto(targets[number][turn % 2], blocks[number][turn % 8])
            turn += 1
        copied[number] = turn * block

    pool = [threading.Thread(target=copy, args=(number,)) for number in range(threads)]
    for thread in pool:
        thread.start()
    for thread in pool:
        thread.join()
    return sum(copied) / seconds


def predict_all(found: dict[str, Any]) -> dict[str, Any]:
    """Return the predictions of one interpreter.

    Args:
        found: What `measure_all` has returned there, through JSON.
    """
    empty = found["workloads"]["empty"]
    # Of a batch of nothing all is the loader's own but the calls of its samples.
    shared = max(0.0, empty["total"] - empty["consumer"] - empty["samples"])
    bandwidth = max(found["bandwidth"].values())
    workloads = {}
    for name, parts in found["workloads"].items():
        bounds = _bounds(parts, shared, bandwidth, gil=found["gil"])
        predicted = [min(n * parts["rates"]["1"], *bounds.values()) for n in THREADS]
        first = min(bounds, key=lambda bound: bounds[bound])
        limit = first if bounds[first] < THREADS[-1] * parts["rates"]["1"] else "one thread"
        at = bounds[first] / parts["rates"]["1"]
        place = "" if limit == "one thread" else f", from {at:.1f} threads on"
        workloads[name] = {
            "predicted": predicted,
            "measured": parts["rates"],
            "limit": f"{limit}{place}: {REMEDIES[limit]}",
        }
    words = {
        "the consumer's thread, a batch": _microseconds(
            [parts["consumer"] for parts in found["workloads"].values()]
        ),
        "the shared part, a batch, at most": f"{shared * 1e6:.0f} us",
        "copying, by threads": ", ".join(
            f"{n}: {value / 1e9:.1f} GB/s" for n, value in found["bandwidth"].items()
        ),
    }
    return {"workloads": workloads, "parts": found, "parts_in_words": words}


def _bounds(
    parts: dict[str, Any], shared: float, bandwidth: float, *, gil: bool
) -> dict[str, float]:
    """Return the rates that no number of threads exceeds, in samples a second."""
    size = parts["batch_size"]
    bounds = {
        "consumer": size / max(parts["consumer"], 1e-9),
        "shared part": size / max(shared, 1e-9),
        # Each byte is read once and written once, as the copies were that are counted here.
        "memory bandwidth": size * bandwidth / max(parts["nbytes"], 1),
    }
    most = max(parts["rates"], key=int)
    gain = parts["rates"][most] / parts["rates"]["1"]
    if gil and gain < GAINING * int(most):
        # Amdahl: with `most` threads the gain is 1 / (held + (1 - held) / most).
        held = (1 / gain - 1 / int(most)) / (1 - 1 / int(most))
        bounds["GIL"] = parts["rates"]["1"] / min(1.0, held)
    return bounds


GAINING = 0.9  # of the ideal, from which on nothing is said to hold the GIL


def _microseconds(seconds: Sequence[float]) -> str:
    low, high = min(seconds) * 1e6, max(seconds) * 1e6
    return f"{low:.0f} to {high:.0f} us"


if __name__ == "__main__":
    sys.exit(main())
