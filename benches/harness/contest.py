"""Who takes part: the lanes of one workload on one interpreter."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from benches.harness.record import Question
from benches.harness.rounds import Lane, Rounds, first_batch, rate
from benches.workloads.catalog import WORKLOADS

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["Build", "Contest", "choose_torch_lanes", "make_contest"]

TORCH_WORKERS = (0, 1, 2, 3)
CLOSE = 0.9  # torch lanes this close to the best one of the trial stay in the contest


@dataclass(frozen=True, slots=True)
class Build:
    """An interpreter that takes part.

    Args:
        label: What tables call it, ``3.13t``.
        python: Path of the interpreter.
        free_threaded: Whether it was built without a GIL.
        torch: Whether it has torch.
    """

    label: str
    python: str
    free_threaded: bool
    torch: bool


@dataclass(frozen=True, slots=True)
class Contest:
    """The lanes of one workload on one interpreter.

    Args:
        workload: A name in `WORKLOADS`.
        build: The interpreter.
        threads: Threads of ``ours`` and ``executor``.
        bare: The bare loop.
        limit: A bare loop per core; None where cores are not what limits.
        executor: The hand-written thread pool.
        ours: ThreadLoader.
        single: ThreadLoader with one thread, where that is worth a lane.
        torch: DataLoaders, empty without torch.
    """

    workload: str
    build: Build
    threads: int
    bare: Lane
    limit: Lane | None
    executor: Lane
    ours: Lane
    single: Lane | None
    torch: tuple[Lane, ...]

    @property
    def lanes(self) -> tuple[Lane, ...]:
        """All lanes, in the order of the tables."""
        lanes = (self.bare, self.limit, self.executor, *self.torch, self.single, self.ours)
        return tuple(lane for lane in lanes if lane is not None)


def make_contest(
    workload: str, build: Build, *, cores: int, threads: int, seconds: float, spin: int
) -> Contest:
    """Set up the lanes, with all of torch's candidates.

    Args:
        workload: A name in `WORKLOADS`.
        build: The interpreter.
        cores: Processes of the limit.
        threads: Threads where the workload does not say how many.
        seconds: Least time of a rate measurement.
        spin: Iterations of the pure-Python workload.
    """
    waits = WORKLOADS[workload].threads
    threads = waits or threads

    def lane(loader: str, workers: int) -> Lane:
        question = Question(workload, loader, workers, seconds, spin)
        return Lane(build.label, build.python, question)

    # Where samples wait, torch's users take as many workers as others take threads.
    candidates = (*TORCH_WORKERS, waits) if waits else TORCH_WORKERS
    return Contest(
        workload=workload,
        build=build,
        threads=threads,
        bare=lane("bare_loop", 1),
        limit=None if waits else lane("processes", cores),
        executor=lane("executor", threads),
        ours=lane("threadloader", threads),
        single=lane("threadloader", 1) if workload == "rows" and threads > 1 else None,
        torch=tuple(lane("torch_dataloader", n) for n in candidates) if build.torch else (),
    )


def choose_torch_lanes(contest: Contest, trial: Rounds) -> Contest:
    """Keep those of torch's lanes that may be its best.

    The trial alone does not decide: all lanes close to its best stay, and the
    rounds themselves choose among them.

    Args:
        contest: With all candidates.
        trial: Rounds of the candidates.
    """
    lanes = contest.torch
    kept = _close_to_best(lanes, trial)
    if contest.workload == "photos":
        with_workers = [lane for lane in lanes if lane.question.workers]
        earliest = trial.best(with_workers, first_batch, most=False)
        kept |= {earliest} if earliest else set()
    if contest.workload == "rows":
        kept |= {lane for lane in lanes if not lane.question.workers}
    # A trial that failed must not hide a rival: its lanes stay, and fail visibly.
    return replace(contest, torch=tuple(lane for lane in lanes if lane in kept or not kept))


def _close_to_best(lanes: Sequence[Lane], trial: Rounds) -> set[Lane]:
    """Return the lanes whose rate is within `CLOSE` of the best one's."""
    best = trial.best(lanes, rate, most=True)
    top = trial.spread(best, rate) if best else None
    if top is None:
        return set()
    found = {lane: trial.spread(lane, rate) for lane in lanes}
    return {
        lane for lane, spread in found.items() if spread and spread.median >= CLOSE * top.median
    }
