"""The libraries that people load with, and what they write without: beside torch's loader.

``python -m benches.libraries``, once with each Python; a library that is missing is left out.
``--everyday`` loads what needs no library; ``--busy 2`` lets two other processes compute meanwhile.

Each workload is loaded by torch's loader with no workers and with two, which are kept between
epochs; and by ThreadLoader with its default, and with 0 to 4 threads.  All take turns in one
process, a new loader each turn, in another order each round: threads and workers of one that waits
for its next turn would work ahead in the turns of others.  Turns are short, as machines that others
share are slower for seconds.  Compared are batches a second after the first second; of all rounds
the median.

- **default**: its rate, of the better of torch's two; where these are two workers, and there is a
  GIL, of torch in-process;
- **of none**: its rate, of that with no threads;
- **by number**: the worst rate of a number that the user chose, of the default's;
- **CPU**: CPU seconds a batch with the default, of those of torch in-process.
"""

from __future__ import annotations

import sys
import tempfile
import time
import warnings
from contextlib import suppress
from datetime import UTC, datetime
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from multiprocessing import Process
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

from torch.utils.data import DataLoader

from benches.harness import blocks
from benches.harness.command import command_line, kept_in, write
from benches.workloads.everyday import EVERYDAY
from benches.workloads.other_libraries import PACKAGES
from benches.workloads.other_libraries import WORKLOADS as LIBRARIES
from threadloader import ThreadLoader
from threadloader._threads.tuner import gil_is_enabled

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

    from benches.workloads.other_libraries import Workload

RESULTS = Path(__file__).parent / "results"
LEAST = 0.97
FIRST_SECONDS = 1.0  # that do not count
# Forked, as a forkserver would pickle the datasets, which are made of functions within functions.
# Where that hangs, beside the threads of a library, the timeout says so: they are left out.
PROCESSES: dict[str, Any] = {
    "num_workers": 2,
    "persistent_workers": True,
    "multiprocessing_context": "fork",
    "timeout": 30.0,
}
LOADERS: dict[str, Callable[..., Any]] = {
    "torch": DataLoader,
    "torch, 2 workers": partial(DataLoader, **PROCESSES),
    "default": ThreadLoader,
    **{f"{number}": partial(ThreadLoader, threads=number) for number in (0, 1, 2, 4)},
}
CHOSEN = ("1", "2", "4")
RATIOS = ("default", "of none", "by number", "cpu")


def main() -> int:
    """Measure, print the table, write the file, return 1 where a target is missed."""
    parser = command_line("libraries", __doc__)
    parser.add_argument("--everyday", action="store_true", help="what needs no other library")
    parser.add_argument("--workload", action="append", choices=[*LIBRARIES, *EVERYDAY])
    parser.add_argument("--seconds", type=float, default=0.5, help="of a turn, after the first one")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--busy", type=int, default=0, help="processes that compute beside")
    parser.add_argument("--output", type=Path)
    options = parser.parse_args()
    made, block = (EVERYDAY, "everyday") if options.everyday else (LIBRARIES, "libraries")
    output = options.output or RESULTS / f"{block}.json"
    for _ in range(options.busy):
        Process(target=_compute, daemon=True).start()
    warnings.simplefilter("ignore")
    label = f"{sys.version_info.major}.{sys.version_info.minor}{'' if gil_is_enabled() else 't'}"
    found = {}
    label += f", {options.busy} busy processes" if options.busy else ""
    for name in options.workload or made:
        try:
            with tempfile.TemporaryDirectory() as folder:
                workload = made[name](Path(folder))
                turns = _turns(workload, options.rounds, options.seconds)
        except ImportError as error:
            print(f"  {name} is left out: {error}", file=sys.stderr)
            continue
        found[name] = summary(turns)
        told = {key: f"{found[name][key]:.2f}" for key in RATIOS}
        print(f"  {name}  {told}", file=sys.stderr, flush=True)
    results = kept_in(output)
    of_build = results.setdefault(label, {"workloads": {}})
    of_build["workloads"].update(found)
    of_build["date"], of_build["versions"] = f"{datetime.now(UTC):%Y-%m-%d}", _versions()
    print(blocks.BLOCKS[block][1]({label: of_build | {"workloads": found}}))
    write(output, results)
    return int(any(each["default"] < LEAST for each in found.values()))


def _compute() -> None:
    while True:
        sum(range(10_000))


def _versions() -> str:
    """Return the packages that are here, of those that the workloads use."""
    found = []
    for package in ("torch", *PACKAGES):
        with suppress(PackageNotFoundError):
            found.append(f"{package} {version(package)}")
    return f"Python {sys.version.split()[0]}, {', '.join(found)}"


def _turns(workload: Workload, rounds: int, seconds: float) -> list[dict[str, tuple[float, float]]]:
    """Return batches and CPU seconds, a second and a batch, by loader, of each round."""
    names, turns = list(LOADERS), []
    for number in range(rounds):
        first = number % len(names)
        turn = {}
        for name in names[first:] + names[:first]:
            try:
                turn[name] = _turn(LOADERS[name], workload, seconds)
            except RuntimeError as error:
                if "timed out" not in str(error):
                    raise
                print(f"  {name} is left out: {error}", file=sys.stderr)
                names.remove(name)
        turns.append(turn)
    return [{name: turn[name] for name in names} for turn in turns]


def _turn(make: Callable[..., Any], workload: Workload, seconds: float) -> tuple[float, float]:
    """Load for a while; return batches a second, and CPU seconds a batch."""
    loader = make(workload.dataset, **workload.arguments)
    batches = _endless(loader)
    begin = time.perf_counter() + FIRST_SECONDS
    while time.perf_counter() < begin:
        next(batches)
    count, begin, used = 0, time.perf_counter(), time.process_time()
    while time.perf_counter() < begin + seconds:
        next(batches)
        count += 1
    took, used = time.perf_counter() - begin, time.process_time() - used
    batches.close()
    if isinstance(loader, ThreadLoader):
        loader.close()
    return count / took, used / count


def _endless(loader: Any) -> Generator[Any, None, None]:
    while True:
        yield from loader


def summary(turns: list[dict[str, tuple[float, float]]]) -> dict[str, Any]:
    """Return the ratios, and the rates that they are of.

    Args:
        turns: What `_turns` returned.
    """
    rates = {name: median(turn[name][0] for turn in turns) for name in turns[0]}
    best = max((name for name in rates if name.startswith("torch")), key=rates.__getitem__)
    rival = "torch" if gil_is_enabled() else best
    return {
        "default": _ratio(turns, "default", rival),
        "of the better": _ratio(turns, "default", best),
        "of none": _ratio(turns, "default", "0"),
        "by number": min(_ratio(turns, name, "default") for name in CHOSEN),
        "cpu": median(turn["default"][1] / turn["torch"][1] for turn in turns),
        "best": best,
        "rates": rates,
    }


def _ratio(turns: list[dict[str, tuple[float, float]]], name: str, other: str) -> float:
    return median(turn[name][0] / turn[other][0] for turn in turns)


if __name__ == "__main__":
    raise SystemExit(main())
