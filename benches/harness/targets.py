"""What the project promises, as a checklist that a run fills in.

Each promise is a bound on one figure of one contest. Ratios are medians of the
ratios within each round; counts are the worst of all rounds.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from benches.harness.rounds import Lane, Spread, first_batch, rate

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from benches.harness.contest import Contest
    from benches.harness.record import Answer
    from benches.harness.rounds import Rounds

__all__ = ["TARGETS", "Target", "Verdict", "judge"]

# A batch of the bandwidth workload has 6,912 pages: a loader that touches fresh memory
# shows at once, and a few faults of the interpreter itself over seconds do not.
FAULTS_PER_BATCH = 0.5
SLOTS_BEYOND_WINDOW = 2


@dataclass(frozen=True, slots=True)
class Target:
    """A promise.

    Args:
        workload: Where it holds; None for each.
        builds: The builds that it is made for.
        claim: The figure in words; ``{n}`` stands for the number of threads.
        bound: What the figure must reach or stay below.
        sense: Whether the bound is a floor or a ceiling.
        figure: Returns the figure, None where it was not measured.
    """

    workload: str | None
    builds: Literal["any", "GIL", "free-threaded"]
    claim: str
    bound: float
    sense: Literal["at least", "at most"]
    figure: Callable[[Rounds, Contest], Spread | None]

    def concerns(self, contest: Contest) -> bool:
        """Whether the promise is about this contest."""
        built = "free-threaded" if contest.build.free_threaded else "GIL"
        return self.workload in (None, contest.workload) and self.builds in ("any", built)


@dataclass(frozen=True, slots=True)
class Verdict:
    """A promise and what became of it in a run."""

    build: str
    workload: str
    claim: str
    sense: str
    bound: float
    figure: Spread | None
    outcome: Literal["met", "missed", "not measured"]


def judge(rounds: Rounds, contests: Iterable[Contest]) -> list[Verdict]:
    """Fill in the checklist.

    Where ThreadLoader failed in any round, or a figure is missing because a rival did, the
    promise is missed; where a rival is not installed, it is not measured.
    """
    return [
        _verdict(target, rounds, contest)
        for contest in contests
        for target in TARGETS
        if target.concerns(contest)
    ]


def _verdict(target: Target, rounds: Rounds, contest: Contest) -> Verdict:
    """Compare one figure with its bound."""
    figure = target.figure(rounds, contest)
    outcome: Literal["met", "missed", "not measured"]
    if contest.ours in rounds.errors or contest.single in rounds.errors:
        outcome = "missed"
    elif figure is None:
        failed = any(lane in rounds.errors for lane in contest.lanes)
        outcome = "missed" if failed else "not measured"
    elif target.sense == "at least":
        outcome = "met" if figure.median >= target.bound else "missed"
    else:
        outcome = "met" if figure.median <= target.bound else "missed"
    return Verdict(
        build=contest.build.label,
        workload=contest.workload,
        claim=target.claim.format(n=contest.threads),
        sense=target.sense,
        bound=target.bound,
        figure=figure,
        outcome=outcome,
    )


def _rate_to_bare(rounds: Rounds, contest: Contest) -> Spread | None:
    return rounds.ratio(contest.ours, contest.bare, rate)


def _rate_to_limit(rounds: Rounds, contest: Contest) -> Spread | None:
    return rounds.ratio(contest.ours, contest.limit, rate) if contest.limit else None


def _rate_to_executor(rounds: Rounds, contest: Contest) -> Spread | None:
    return rounds.ratio(contest.ours, contest.executor, rate)


def _rate_to_torch(rounds: Rounds, contest: Contest) -> Spread | None:
    best = rounds.best(contest.torch, rate, most=True)
    return rounds.ratio(contest.ours, best, rate) if best else None


def _first_to_bare(rounds: Rounds, contest: Contest) -> Spread | None:
    return rounds.ratio(contest.ours, contest.bare, first_batch)


def _first_to_torch(rounds: Rounds, contest: Contest) -> Spread | None:
    lanes = [lane for lane in contest.torch if lane.question.workers]
    best = rounds.best(lanes, first_batch, most=False)
    return rounds.ratio(contest.ours, best, first_batch) if best else None


def _single(contest: Contest) -> Lane:
    """Return ThreadLoader with one thread; on one core that is the lane itself."""
    return contest.single or contest.ours


def _single_to_bare(rounds: Rounds, contest: Contest) -> Spread | None:
    return rounds.ratio(_single(contest), contest.bare, rate)


def _single_to_torch_without_workers(rounds: Rounds, contest: Contest) -> Spread | None:
    for lane in contest.torch:
        if lane.question.workers == 0:
            return rounds.ratio(_single(contest), lane, rate)
    return None


def _rate_to_threads(rounds: Rounds, contest: Contest) -> Spread | None:
    found = _rate_to_bare(rounds, contest)
    if found is None:
        return None
    n = contest.threads
    return Spread(found.median / n, found.low / n, found.high / n)


def _faults(rounds: Rounds, contest: Contest) -> Spread | None:
    return rounds.spread(contest.ours, lambda answer: answer.faults_per_batch)


def _slots_beyond_window(rounds: Rounds, contest: Contest) -> Spread | None:
    def beyond(answer: Answer) -> float:
        return answer.counters["slots_made"] - answer.counters["window"]

    return _worst(rounds.of(contest.ours), beyond)


def _worst(answers: list[Answer], count: Callable[[Answer], float]) -> Spread | None:
    """Return the highest count, None where no answer has the counters."""
    counts = [count(answer) for answer in answers if answer.counters]
    return Spread(max(counts), min(counts), max(counts)) if counts else None


TARGETS = (
    Target("photos", "any", "rate, {n} threads, of the limit", 0.97, "at least", _rate_to_limit),
    Target("photos", "any", "rate, {n} threads, of the executor", 1, "at least", _rate_to_executor),
    Target("photos", "GIL", "rate, {n} threads, of torch's best", 1.3, "at least", _rate_to_torch),
    Target("photos", "any", "first batch, of the bare loop's", 0.6, "at most", _first_to_bare),
    Target(
        "photos",
        "any",
        "first batch, of torch's best with workers",
        0.5,
        "at most",
        _first_to_torch,
    ),
    Target("rows", "any", "rate, 1 thread, of the bare loop", 1, "at least", _single_to_bare),
    Target(
        "rows",
        "GIL",
        "rate, 1 thread, of torch without workers",
        5,
        "at least",
        _single_to_torch_without_workers,
    ),
    Target("rows", "any", "rate, {n} threads, of the bare loop", 0.8, "at least", _rate_to_bare),
    Target("bandwidth", "any", "rate, {n} threads, of the limit", 0.9, "at least", _rate_to_limit),
    Target(
        "bandwidth", "any", "rate, {n} threads, of the executor", 1, "at least", _rate_to_executor
    ),
    Target("bandwidth", "any", "page faults a batch", FAULTS_PER_BATCH, "at most", _faults),
    Target(
        "remote", "any", "rate, {n} threads, of {n} bare loops", 0.97, "at least", _rate_to_threads
    ),
    Target(
        "pure_python", "GIL", "rate, {n} threads, of the bare loop", 0.95, "at least", _rate_to_bare
    ),
    Target(
        "pure_python",
        "free-threaded",
        "rate, {n} threads, of the limit",
        0.95,
        "at least",
        _rate_to_limit,
    ),
    Target(
        None, "any", "slots beyond the window", SLOTS_BEYOND_WINDOW, "at most", _slots_beyond_window
    ),
)
