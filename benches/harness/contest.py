"""Who takes part: the lanes of one workload on one interpreter."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from benches.harness.record import Question
from benches.harness.rounds import Lane, Rounds
from benches.loaders.catalog import LOADERS
from benches.workloads.catalog import WORKLOADS, Workload

if TYPE_CHECKING:
    from collections.abc import Collection

__all__ = ["Build", "Contest", "lanes_ahead", "make_contest"]


# A process for each measurement takes seconds to start.
QUICK_IN_FRESH_PROCESSES = ("bare_loop", "torch_dataloader", "spdl_subprocess", "threadloader")


@dataclass(frozen=True, slots=True)
class Build:
    """An interpreter that takes part.

    Args:
        label: What tables call it, ``3.13t``.
        python: Path of the interpreter.
        free_threaded: Whether it was built without a GIL.
        packages: That it can import, by the names that are imported.
    """

    label: str
    python: str
    free_threaded: bool
    packages: frozenset[str] = frozenset()

    def lacks(self, needs: Collection[str]) -> list[str]:
        """Return what it does not have."""
        return [name for name in needs if name not in self.packages]


@dataclass(frozen=True, slots=True)
class Contest:
    """The lanes of one workload on one interpreter.

    Args:
        workload: A name in `WORKLOADS`.
        build: The interpreter.
        threads: Threads that loaders are measured with.
        lanes: All of them, in the order of the tables.
        left_out: Rivals that don't take part, and why.
        compared: Samples of a short epoch that were compared with the dataset's, by loader.
    """

    workload: str
    build: Build
    threads: int
    lanes: tuple[Lane, ...]
    left_out: dict[str, str] = field(default_factory=dict)
    compared: dict[str, int] = field(default_factory=dict)

    def of(self, loader: str, *workers: int) -> list[Lane]:
        """Return the lanes of a loader, all or those with so many workers."""
        return [
            lane
            for lane in self.lanes
            if lane.question.loader == loader and (not workers or lane.question.workers in workers)
        ]

    @property
    def figure(self) -> str:
        """The field of an answer that loaders are compared by."""
        return WORKLOADS[self.workload].figure

    @property
    def rivals(self) -> list[str]:
        """Loaders other than ours, the limit left out."""
        names = dict.fromkeys(lane.question.loader for lane in self.lanes)
        own = ("threadloader", "threadloader_shared_rng", "processes")
        return [name for name in names if name not in own]


def make_contest(
    name: str,
    build: Build,
    *,
    cores: int,
    threads: int,
    seconds: float,
    spin: int,
    quick: bool = False,
) -> Contest:
    """Set up the lanes.

    Args:
        name: Of the workload.
        build: The interpreter.
        cores: Processes of the limit.
        threads: Threads where the workload does not say how many.
        seconds: Least time of a rate measurement.
        spin: Iterations of the pure-Python workload.
        quick: Whether numbers of workers are left out that are rarely the best.
    """
    workload = WORKLOADS[name]
    threads = workload.threads or threads
    lanes: list[Lane] = []
    left_out: dict[str, str] = {}
    for loader, entry in LOADERS.items():
        if not _takes_part(loader, workload):
            continue
        if quick and workload.fresh and loader not in QUICK_IN_FRESH_PROCESSES:
            left_out[loader] = "not measured by a quick run"
            continue
        missing = build.lacks([*workload.needs, *([entry.needs] if entry.needs else [])])
        if missing:
            left_out[loader] = f"{', '.join(missing)} not installed: no wheel for this Python"
            continue
        count = cores if loader == "processes" else threads
        lanes += [
            Lane(build.label, build.python, Question(name, loader, workers, seconds, spin))
            for workers in _worker_counts(loader, workload, count, quick=quick)
        ]
    return Contest(name, build, threads, tuple(lanes), left_out)


def _takes_part(loader: str, workload: Workload) -> bool:
    """Whether a loader can do the workload, and is asked to."""
    if workload.source not in LOADERS[loader].sources:
        return False
    if workload.kind == "import":
        return loader == "threadloader"
    if loader == "processes":
        return workload.limit
    return loader != "threadloader_shared_rng" or workload.random


def _worker_counts(
    loader: str, workload: Workload, threads: int, *, quick: bool
) -> tuple[int, ...]:
    """Return the numbers of workers that a loader is measured with."""
    if workload.kind == "import":
        return (threads,)
    # Of our own, and of torch's where processes may win, all are of interest.
    own = loader.startswith("threadloader")
    few = quick and not own and loader != "webdataset_shards"
    parallel = workload.parallel or loader == "torch_dataloader"
    counts = LOADERS[loader].counts(threads, few=few, parallel=parallel)
    # Memory: with as many workers as there are cores; a process for each takes the most time.
    if quick and workload.figure == "pss_mib" and loader != "torch_dataloader":
        return counts[-1:]
    return counts


def lanes_ahead(contest: Contest, first: Rounds, close: float) -> list[Lane]:
    """Return the lanes without those of rivals that were far behind in the first round.

    ThreadLoader, the bare loop, the limit and torch's loader without workers stay, and so does the
    best number of workers of the best rivals.  A lane that failed does not: its error is kept.

    Args:
        contest: With all lanes.
        first: The round.
        close: The part of the best rival's figure that a lane must reach to stay.
    """
    found = {
        lane: spread.median
        for lane in contest.lanes
        if (spread := first.spread(lane, contest.figure))
    }
    theirs = {
        lane: median if contest.figure == "rate" else 1 / max(median, 1e-9)
        for lane, median in found.items()
        if lane.question.loader in contest.rivals
    }
    best = max(theirs.values(), default=0.0)
    always = {*contest.of("torch_dataloader", 0)}
    for loader in ("bare_loop", "processes", "threadloader", "threadloader_shared_rng"):
        always |= {*contest.of(loader)}
    return [
        lane
        for lane in contest.lanes
        if lane in found and (lane in always or theirs.get(lane, 0.0) >= close * best)
    ]
