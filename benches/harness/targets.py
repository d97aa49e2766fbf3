"""What the project promises, as a checklist that a run fills in.

Each promise is a bound on one figure of one contest. Ratios are medians of the
ratios within each round; counts are the worst of all rounds. And no rival is ahead of ThreadLoader
in anything that both can do: those that are get listed.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from benches.harness.contest import Contest, figure_of
from benches.harness.rounds import Spread, first_batch, rate
from benches.workloads.catalog import WORKLOADS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from benches.harness.record import Answer
    from benches.harness.rounds import Rounds

__all__ = ["TARGETS", "Ahead", "Target", "Verdict", "judge", "rivals_ahead"]

# A batch of the bandwidth workload has 6,912 pages: a loader that touches fresh memory
# shows at once, and a few faults of the interpreter itself over seconds do not.
FAULTS_PER_BATCH = 0.5
SLOTS_BEYOND_WINDOW = 2


Builds = Literal["any", "GIL", "free-threaded"]
Sense = Literal["at least", "at most"]


@dataclass(frozen=True, slots=True)
class Target:
    """A promise.

    Args:
        workload: Where it holds.
        builds: The builds that it is made for.
        claim: The figure in words; ``{n}`` stands for the number of threads.
        bound: What the figure must reach or stay below.
        sense: Whether the bound is a floor or a ceiling.
        figure: Returns the figure, None where it was not measured.
    """

    workload: str
    builds: Builds
    claim: str
    bound: float
    sense: Sense
    figure: Callable[[Rounds, Contest], Spread | None]

    def concerns(self, contest: Contest) -> bool:
        """Whether the promise is about this contest."""
        built = "free-threaded" if contest.build.free_threaded else "GIL"
        return self.workload == contest.workload and self.builds in ("any", built)


@dataclass(frozen=True, slots=True)
class Ahead:
    """A rival that is better than ThreadLoader at a workload.

    Args:
        build: The interpreter's label.
        workload: Its name.
        loader: The rival, with its best number of workers.
        workers: That number.
        ratio: Its figure by ThreadLoader's best, so that more than 1 is better.
        excused: Why that is not an exception, if it is not.
    """

    build: str
    workload: str
    loader: str
    workers: int
    ratio: Spread
    excused: str | None


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
    if any(lane in rounds.errors for lane in contest.of("threadloader")):
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


def rivals_ahead(rounds: Rounds, contests: Iterable[Contest]) -> list[Ahead]:
    """List the rivals whose figure is better than that of ThreadLoader's best number of threads."""
    return [
        ahead
        for contest in contests
        for loader in contest.rivals
        if (ahead := _ahead(rounds, contest, loader)) is not None
    ]


def _ahead(rounds: Rounds, contest: Contest, loader: str) -> Ahead | None:
    """Compare one rival's best number of workers with ours."""
    workload = WORKLOADS[contest.workload]
    figure, most = figure_of(workload), workload.more_is_better
    ours = rounds.best(contest.of("threadloader"), figure, most=most)
    theirs = rounds.best(contest.of(loader), figure, most=most)
    pair = (theirs, ours) if most else (ours, theirs)
    ratio = rounds.ratio(*pair, figure)
    if ratio is None or theirs is None or ratio.median <= 1:
        return None
    excused = None
    processes = loader in PROCESS_LOADERS and theirs.question.workers > 0
    if contest.workload in HOLDS_GIL and processes and not contest.build.free_threaded:
        excused = "worker processes on pure Python, where the GIL is on"
    elif loader == "bare_loop" and workload.kind in ("first batch", "fresh process"):
        excused = "a loop has nothing to start"
    elif ratio.low <= 1:
        excused = "within the spread of the rounds"
    return Ahead(
        contest.build.label, contest.workload, loader, theirs.question.workers, ratio, excused
    )


# Whose workers are processes, and what they may win at while a GIL is on.
PROCESS_LOADERS = ("torch_dataloader", "stateful_dataloader", "spdl_subprocess")
HOLDS_GIL = ("pure_python", "text")


def _of_bare(rounds: Rounds, contest: Contest) -> Spread | None:
    return rounds.ratio(contest.ours, contest.bare, rate)


def _of_limit(rounds: Rounds, contest: Contest) -> Spread | None:
    return rounds.ratio(contest.ours, contest.limit, rate)


def _of_torch_best(rounds: Rounds, contest: Contest) -> Spread | None:
    best = rounds.best(contest.of("torch_dataloader"), rate, most=True)
    return rounds.ratio(contest.ours, best, rate)


def _of_torch_up_to_2(rounds: Rounds, contest: Contest) -> Spread | None:
    few = [lane for lane in contest.of("torch_dataloader") if lane.question.workers <= 2]
    return rounds.ratio(contest.ours, rounds.best(few, rate, most=True), rate)


def _best_of_torch_best(rounds: Rounds, contest: Contest) -> Spread | None:
    best = rounds.best(contest.of("torch_dataloader"), rate, most=True)
    return rounds.ratio(rounds.best(contest.of("threadloader"), rate, most=True), best, rate)


def _of_torch_inline(rounds: Rounds, contest: Contest) -> Spread | None:
    return rounds.ratio(contest.ours, contest.torch_inline, rate)


def _first_of_bare(rounds: Rounds, contest: Contest) -> Spread | None:
    return rounds.ratio(contest.ours, contest.bare, first_batch)


def _first_of_torch(rounds: Rounds, contest: Contest) -> Spread | None:
    lanes = [lane for lane in contest.of("torch_dataloader") if lane.question.workers]
    best = rounds.best(lanes, first_batch, most=False)
    return rounds.ratio(contest.ours, best, first_batch)


def _single_of_bare(rounds: Rounds, contest: Contest) -> Spread | None:
    return rounds.ratio(contest.single, contest.bare, rate)


def _single_of_torch_inline(rounds: Rounds, contest: Contest) -> Spread | None:
    return rounds.ratio(contest.single, contest.torch_inline, rate)


def _inline_of_bare(rounds: Rounds, contest: Contest) -> Spread | None:
    return rounds.ratio(contest.inline, contest.bare, rate)


def _inline_of_torch_inline(rounds: Rounds, contest: Contest) -> Spread | None:
    return rounds.ratio(contest.inline, contest.torch_inline, rate)


def _best_of_torch_inline(rounds: Rounds, contest: Contest) -> Spread | None:
    ours = rounds.best(contest.of("threadloader"), rate, most=True)
    return rounds.ratio(ours, contest.torch_inline, rate)


def _best_of_bare(rounds: Rounds, contest: Contest) -> Spread | None:
    return rounds.ratio(
        rounds.best(contest.of("threadloader"), rate, most=True), contest.bare, rate
    )


def _of_loops(rounds: Rounds, contest: Contest) -> Spread | None:
    found = _of_bare(rounds, contest)
    if found is None:
        return None
    n = contest.threads
    return Spread(found.median / n, found.low / n, found.high / n)


def _first(rounds: Rounds, contest: Contest) -> Spread | None:
    return rounds.spread(contest.ours, first_batch)


def _cpu_of_shared_rng(rounds: Rounds, contest: Contest) -> Spread | None:
    def cpu(answer: Answer) -> float | None:
        return answer.cpu_us_per_sample

    return rounds.ratio(contest.inline, contest.lane("threadloader_shared_rng", 0), cpu)


def _package_import(rounds: Rounds, contest: Contest) -> Spread | None:
    return rounds.spread(contest.ours, lambda answer: answer.counters.get("package_ms"))


def _faults(rounds: Rounds, contest: Contest) -> Spread | None:
    return rounds.spread(contest.ours, lambda answer: answer.faults_per_batch)


def _slots_beyond_window(rounds: Rounds, contest: Contest) -> Spread | None:
    def beyond(answer: Answer) -> float:
        return answer.counters["slots_made"] - answer.counters["window"]

    return _worst(rounds.of(contest.ours), beyond) if contest.ours else None


def _worst(answers: list[Answer], count: Callable[[Answer], float]) -> Spread | None:
    """Return the highest count, None where no answer has the counters."""
    counts = [count(answer) for answer in answers if "slots_made" in answer.counters]
    return Spread(max(counts), min(counts), max(counts)) if counts else None


def _targets() -> Iterator[Target]:
    """Yield the table of the promises, by workload."""
    least: Sense = "at least"
    most: Sense = "at most"
    free: Builds = "free-threaded"
    gil: Builds = "GIL"
    yield Target("photos", free, "{n} threads, of the limit", 0.98, least, _of_limit)
    yield Target("photos", gil, "{n} threads, of the limit", 0.97, least, _of_limit)
    yield Target("photos", gil, "{n} threads, of torch's best", 1.5, least, _of_torch_best)
    yield Target("photos", "any", "first batch, of the bare loop's", 0.55, most, _first_of_bare)
    claim = "first batch, of torch's best with workers"
    yield Target("photos", "any", claim, 0.5, most, _first_of_torch)
    for name in ("photos_v1", "photos_v2"):
        yield Target(name, free, "{n} threads, of the limit", 0.95, least, _of_limit)
        yield Target(name, gil, "{n} threads, of torch's best", 0.95, least, _of_torch_best)
    yield Target("rows", free, "{n} threads, of the bare loop", 1.5, least, _of_bare)
    yield Target("rows", "any", "1 thread, of the bare loop", 0.95, least, _single_of_bare)
    yield Target("rows", "any", "no threads, of the bare loop", 0.97, least, _inline_of_bare)
    for name in ("tensor_rows", "wrapped_rows"):
        in_process = "of torch in-process"
        yield Target(name, free, f"{{n}} threads, {in_process}", 1.6, least, _of_torch_inline)
        yield Target(name, "any", f"1 thread, {in_process}", 1.0, least, _single_of_torch_inline)
        yield Target(name, "any", f"no threads, {in_process}", 1.0, least, _inline_of_torch_inline)
    in_process = "of torch in-process"
    yield Target("cifar", free, f"{{n}} threads, {in_process}", 1.6, least, _of_torch_inline)
    yield Target("cifar", gil, f"no threads, {in_process}", 0.95, least, _inline_of_torch_inline)
    claim = "{n} threads, of torch's best with 0 to 2 workers"
    yield Target("cifar", gil, claim, 1.0, least, _of_torch_up_to_2)
    for name, bound in (("cifar", 1.1), ("photos_v1", 1.02), ("photos_v2", 1.02)):
        claim = "CPU time, no threads, of that with isolate_rng=False"
        yield Target(name, "any", claim, bound, most, _cpu_of_shared_rng)
    yield Target("text", free, "{n} threads, of the bare loop", 1.5, least, _of_bare)
    yield Target("text", gil, f"best, {in_process}", 0.95, least, _best_of_torch_inline)
    # A third of torch's time a sample.
    yield Target("empty", "any", "best, of torch's best", 1 / 0.3, least, _best_of_torch_best)
    for name in ("arrays", "tensor_dataset"):
        yield Target(name, "any", "best, of a bare gather", 1.0, least, _best_of_bare)
    claim = "{n} threads, of the limit with as much memory"
    yield Target("bandwidth", "any", claim, 0.9, least, _of_limit)
    yield Target("bandwidth", "any", "page faults a batch", FAULTS_PER_BATCH, most, _faults)
    yield Target("remote", "any", "{n} threads, of {n} bare loops", 0.97, least, _of_loops)
    yield Target("pure_python", free, "{n} threads, of the limit", 0.95, least, _of_limit)
    yield Target("pure_python", gil, "{n} threads, of the bare loop", 0.97, least, _of_bare)
    yield Target("start_small", "any", "ms to the first batch", 2, most, _first)
    yield Target("start_paths", "any", "ms to the first batch", 2, most, _first)
    yield Target("start_indices", "any", "ms to the first batch", 2, most, _first)
    claim = "ms to import ThreadLoader, beyond torch and NumPy"
    yield Target("imports", "any", claim, 30, most, _first)
    yield Target("imports", "any", "ms to import threadloader alone", 5, most, _package_import)
    for name in ("mnist_job", "integers_job"):
        yield Target(name, "any", f"best, {in_process}", 1.0, least, _best_of_torch_inline)
    for name in ("photos", "bandwidth"):
        claim = "slots beyond the window"
        yield Target(name, "any", claim, SLOTS_BEYOND_WINDOW, most, _slots_beyond_window)


TARGETS = tuple(_targets())
