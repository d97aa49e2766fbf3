"""The project's targets, as a checklist that a run fills in.

Each target is a bound on one figure of one contest. Ratios are medians of the ratios within each
round; counts are the worst of all rounds. And no rival is ahead of ThreadLoader in anything that
both can do: those that are get listed.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

from benches.harness.tables import Spread

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from benches.harness.contest import Contest
    from benches.harness.rounds import Lane, Rounds

__all__ = ["Verdict", "judge", "rivals_ahead"]

Outcome = Literal["met", "missed", "not measured"]

# What ThreadLoader's figure is compared with; a target says its own number of threads.
OTHERS: dict[str, Callable[[Contest], list[Lane]]] = {
    "the bare loop": lambda contest: contest.of("bare_loop"),
    "a bare gather": lambda contest: contest.of("bare_loop"),
    "as many bare loops": lambda contest: contest.of("bare_loop"),
    "the limit": lambda contest: contest.of("processes"),
    "torch in-process": lambda contest: contest.of("torch_dataloader", 0),
    "torch's best": lambda contest: contest.of("torch_dataloader"),
    "torch's best with 0 to 2 workers": lambda contest: contest.of("torch_dataloader", 0, 1, 2),
    "torch's best with workers": lambda contest: [
        lane for lane in contest.of("torch_dataloader") if lane.question.workers
    ],
    "that with isolate_rng=False": lambda contest: contest.of("threadloader_shared_rng", 0),
}
FIGURES = {
    "rate": "",
    "first_batch_ms": "first batch, ",
    "cpu_us_per_sample": "CPU time, ",
}


@dataclass(frozen=True, slots=True)
class Target:
    """A target.

    Args:
        workload: Where it holds.
        builds: The builds that it is for: with a GIL, without one, or all of them.
        bound: What the figure must reach or stay below.
        sense: Whether the bound is a floor or a ceiling.
        threads: Of ThreadLoader; ``"n"`` for as many as there are cores, or ``"best"``.
        of: What it is compared with, in `OTHERS`; nothing where the figure is a number by itself.
        figure: That of an answer, or one of ThreadLoader's counters.
        words: The figure in words, where it is a number by itself.
    """

    workload: str
    builds: Literal["GIL", "free-threaded", "any"]
    bound: float
    sense: Literal["at least", "at most"]
    threads: int | Literal["n", "best"] = "n"
    of: str = ""
    figure: str = "rate"
    words: str = ""

    def concerns(self, contest: Contest) -> bool:
        """Whether the target is about this contest."""
        built = "free-threaded" if contest.build.free_threaded else "GIL"
        return self.workload == contest.workload and self.builds in ("any", built)

    def claim(self, contest: Contest) -> str:
        """Return the figure in words."""
        if not self.of:
            return self.words
        threads = contest.threads if self.threads == "n" else self.threads
        count = {"best": "best", 0: "no threads", 1: "1 thread"}.get(threads, f"{threads} threads")
        return f"{FIGURES[self.figure]}{count}, of {self.of}"

    def measured(self, rounds: Rounds, contest: Contest) -> Spread | None:
        """Return the figure, None where it was not measured."""
        threads = contest.threads if self.threads == "n" else self.threads
        lanes = contest.of("threadloader", *(() if threads == "best" else (threads,)))
        ours = rounds.best(lanes, self.figure)
        if not self.of:
            found = rounds.spread(ours, self.figure)
            return replace(found, median=found.high) if found and self.figure == SLOTS else found
        theirs = rounds.best(OTHERS[self.of](contest), self.figure)
        found = rounds.ratio(ours, theirs, self.figure)
        if found is None or self.of != "as many bare loops":
            return found
        return Spread(*(each / contest.threads for each in (found.median, found.low, found.high)))


@dataclass(frozen=True, slots=True)
class Verdict:
    """A target and what became of it in a run."""

    build: str
    workload: str
    claim: str
    sense: str
    bound: float
    figure: Spread | None
    outcome: Outcome


def judge(rounds: Rounds, contests: Iterable[Contest]) -> list[Verdict]:
    """Fill in the checklist.

    Where ThreadLoader failed in any round, or a figure is missing because a rival did, the
    target is missed; where a rival is not installed, it is not measured.
    """
    return [
        Verdict(
            contest.build.label,
            contest.workload,
            target.claim(contest),
            target.sense,
            target.bound,
            figure := target.measured(rounds, contest),
            _outcome(target, figure, rounds, contest),
        )
        for contest in contests
        for target in TARGETS
        if target.concerns(contest)
    ]


def _outcome(target: Target, figure: Spread | None, rounds: Rounds, contest: Contest) -> Outcome:
    """Compare one figure with its bound."""
    if any(lane in rounds.errors for lane in contest.of("threadloader")):
        return "missed"
    if figure is None:
        failed = any(lane in rounds.errors for lane in contest.lanes)
        return "missed" if failed else "not measured"
    if target.sense == "at least":
        return "met" if figure.median >= target.bound else "missed"
    return "met" if figure.median <= target.bound else "missed"


def rivals_ahead(rounds: Rounds, contest: Contest) -> list[tuple[Lane, Spread]]:
    """Return the rivals that are ahead of ThreadLoader beyond the spread of the rounds.

    Each with its best number of workers, and its figure by that of ThreadLoader's best number of
    threads, so that more than 1 is better; the farthest first.
    """
    found = []
    for loader in contest.rivals:
        theirs = rounds.best(contest.of(loader), contest.figure)
        ratio, _ = rounds.better(contest.of(loader), contest.of("threadloader"), contest.figure)
        if theirs is not None and ratio is not None and ratio.median > 1 and ratio.low > 1:
            found.append((theirs, ratio))
    return sorted(found, key=lambda pair: -pair[1].median)


SLOTS = "slots_beyond_window"
TORCH, BEST = "torch in-process", "torch's best"


def _isolated(workload: str, bound: float) -> Target:
    """Bound what random streams for each sample cost."""
    of = "that with isolate_rng=False"
    return Target(workload, "any", bound, "at most", 0, of, "cpu_us_per_sample")


TARGETS = (
    Target("photos", "free-threaded", 0.98, "at least", of="the limit"),
    Target("photos", "GIL", 0.97, "at least", of="the limit"),
    Target("photos", "GIL", 1.5, "at least", of=BEST),
    Target("photos", "any", 0.55, "at most", of="the bare loop", figure="first_batch_ms"),
    Target("photos", "any", 0.5, "at most", of=f"{BEST} with workers", figure="first_batch_ms"),
    Target("photos", "any", 2, "at most", figure=SLOTS, words="slots beyond the window"),
    *(
        target
        for name in ("photos_v1", "photos_v2")
        for target in (
            Target(name, "free-threaded", 0.95, "at least", of="the limit"),
            Target(name, "GIL", 0.95, "at least", of=BEST),
            _isolated(name, 1.02),
        )
    ),
    Target("rows", "free-threaded", 1.5, "at least", of="the bare loop"),
    Target("rows", "any", 0.95, "at least", 1, "the bare loop"),
    Target("rows", "any", 0.97, "at least", 0, "the bare loop"),
    Target("tensor_rows", "free-threaded", 1.6, "at least", of=TORCH),
    Target("tensor_rows", "any", 1.0, "at least", 1, TORCH),
    Target("tensor_rows", "any", 1.0, "at least", 0, TORCH),
    Target("cifar", "free-threaded", 1.6, "at least", of=TORCH),
    Target("cifar", "GIL", 0.95, "at least", 0, TORCH),
    Target("cifar", "GIL", 1.0, "at least", of=f"{BEST} with 0 to 2 workers"),
    _isolated("cifar", 1.1),
    Target("text", "free-threaded", 1.5, "at least", of="the bare loop"),
    Target("text", "GIL", 0.95, "at least", "best", TORCH),
    # A third of torch's time a sample.
    Target("empty", "any", 1 / 0.3, "at least", "best", BEST),
    Target("arrays", "any", 1.0, "at least", "best", "a bare gather"),
    Target("tensor_dataset", "any", 1.0, "at least", "best", "a bare gather"),
    Target("bandwidth", "any", 0.9, "at least", of="the limit"),
    # A batch has 6,912 pages: a loader that touches fresh memory shows at once, and a few faults of
    # the interpreter itself over seconds do not.
    Target(
        "bandwidth", "any", 0.5, "at most", figure="faults_per_batch", words="page faults a batch"
    ),
    Target("bandwidth", "any", 2, "at most", figure=SLOTS, words="slots beyond the window"),
    Target("remote", "any", 0.97, "at least", of="as many bare loops"),
    Target("pure_python", "free-threaded", 0.95, "at least", of="the limit"),
    Target("pure_python", "GIL", 0.97, "at least", of="the bare loop"),
    Target("start_paths", "any", 2, "at most", figure="first_batch_ms", words="first batch, ms"),
    Target(
        "imports",
        "any",
        30,
        "at most",
        figure="first_batch_ms",
        words="ms to import ThreadLoader, beyond torch and NumPy",
    ),
    Target(
        "imports",
        "any",
        5,
        "at most",
        figure="package_ms",
        words="ms to import threadloader alone",
    ),
    Target("mnist_job", "any", 1.0, "at least", "best", TORCH),
    Target("integers_job", "any", 1.0, "at least", "best", TORCH),
)
