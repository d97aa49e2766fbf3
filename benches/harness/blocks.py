"""The figures of the documentation as Markdown, each block a function of the results."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from benches.harness import batching, driving
from benches.harness.contest import Contest, figure_of
from benches.harness.rounds import Lane, Spread, rate
from benches.harness.tables import show_number, show_ratio, show_spread
from benches.harness.targets import Verdict, judge, rivals_ahead
from benches.loaders.catalog import LOADERS
from benches.workloads.catalog import WORKLOADS

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from benches.harness.results import Results
    from benches.workloads.catalog import Workload

__all__ = ["BLOCKS", "Source"]

UNITS = {
    "rate": "samples/s",
    "first_batch_ms": "ms to the first batch",
    "process_ms": "ms to the first batch",
    "pss_mib": "MiB",
}
# Of the README, beside torch's DataLoader.
AGAINST_TORCH = {
    "photos": "photos, decoded by Pillow",
    "remote": "samples that wait 10 ms for a network",
    "tensor_dataset": "a `TensorDataset`",
    "cifar": "small images, augmented by torch operators",
    "pure_python": "0.2 ms of pure Python a sample",
    "start_paths": "first batch of 10^6 paths",
    "integers_job": "a hundred epochs of 4 batches of integers",
    "strings": "memory, 5 million strings in a list",
}
# Beside the best rival.
HEADLINES = (
    *("photos", "photos_v2", "cifar", "rows", "tensor_rows", "tensor_dataset", "bandwidth"),
    *("remote", "pure_python", "text", "tar_zst", "mnist_job", "integers_job", "strings"),
)


@dataclass(frozen=True, slots=True)
class Source:
    """All results.

    Args:
        bench: Of `benches.north_star`.
        builds: Of `benches.gil_vs_nogil`.
        self_driving: Of `benches.self_driving`, as it writes them.
        interference: Of `benches.interference`, likewise.
        token_batches: Of `benches.token_batches`, likewise.
        resuming: Of `benches.resuming`, likewise.
        libraries: Of `benches.libraries`, likewise.
        gpu: Of `benches.gpu`, likewise.
        symptoms: Of `benches.symptoms`, likewise.
    """

    bench: Results
    builds: Results
    self_driving: Mapping[str, Any] = field(default_factory=dict)
    interference: Mapping[str, Any] = field(default_factory=dict)
    token_batches: Mapping[str, Any] = field(default_factory=dict)
    resuming: Mapping[str, Any] = field(default_factory=dict)
    libraries: Mapping[str, Any] = field(default_factory=dict)
    gpu: Mapping[str, Any] = field(default_factory=dict)
    symptoms: Mapping[str, Any] = field(default_factory=dict)


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a Markdown table."""
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def plain(workload: str) -> str:
    """Return a workload's name in words."""
    return workload.replace("_", " ")


def machine(source: Source) -> str:
    """Say what was measured on, when, and how."""
    return _machine(source.bench)


def _machine(results: Results) -> str:
    if not results.builds:
        return "Not measured yet."
    first = next(iter(results.builds.values()))
    lines = [f"- {first['cores']} cores of a machine with {first['processor']}, {first['system']}"]
    for label, told in results.builds.items():
        versions = [f"{name} {v}" for name, v in told["packages"].items() if v]
        lines.append(f"- {label}: Python {told['python_version']}, {', '.join(versions)}")
    for run, how in results.runs.items():
        quick = ", quick" if how["quick"] else ""
        lines.append(
            f"- {run} UTC: medians of {_rounds(results, run)} rounds of {how['seconds']:g} s at "
            f"least{quick}; {_disturbance(results, run)}"
        )
    return "\n".join(lines)


def _rounds(results: Results, run: str) -> str:
    """Say how many rounds there were, of the lanes that took part in all."""
    counts = {
        len(results.rounds.answers[lane])
        for lane, name in results.rounds.runs.items()
        if name == run and lane.question.loader == "threadloader"
    }
    least, most = min(counts, default=0), max(counts, default=0)
    return str(most) if least == most else f"{least} to {most}"


def _disturbance(results: Results, run: str) -> str:
    """Say how busy others kept the machine."""
    busy = [
        answer.other_cores_busy
        for lane, name in results.rounds.runs.items()
        if name == run
        for answer in results.rounds.of(lane)
        if answer.other_cores_busy is not None
    ]
    disturbed = [cores for cores in busy if cores > 0.1]
    if not disturbed:
        return "nothing else ran on it"
    return (
        f"in {len(disturbed)} of {len(busy)} measurements others used more than a tenth of a core"
    )


def workloads(source: Source) -> str:
    """List what is loaded."""
    names = dict.fromkeys(contest.workload for contest in source.bench.ordered())
    rows = [[plain(name), WORKLOADS[name].title] for name in names]
    return table(["workload", "what it is"], rows)


def against_torch(source: Source) -> str:
    """Compare ThreadLoader's best with torch's DataLoader, in-process and with workers."""
    results = source.bench
    header = ["", "compared by"]
    for label in results.builds:
        header += [f"{label}: times torch in-process", "times torch's best with workers"]
    rows = []
    for name, title in AGAINST_TORCH.items():
        row = [title, _unit(WORKLOADS[name])]
        for label in results.builds:
            contest = results.contests.get((label, name))
            theirs = contest.of("torch_dataloader") if contest else ()
            for lanes in (
                [lane for lane in theirs if not lane.question.workers],
                [lane for lane in theirs if lane.question.workers],
            ):
                ratio, _ = _against(results, contest, lanes) if contest else (None, None)
                row.append(show_number(ratio.median) if ratio else "-")
        rows.append(row)
    return table(header, rows)


def headline(source: Source) -> str:
    """Compare ThreadLoader with the best rival of each workload."""
    results = source.bench
    header = [
        "workload",
        "compared by",
        *(f"{label}: times the best rival" for label in results.builds),
    ]
    rows = []
    for name in HEADLINES:
        cells = [
            _against_best(results, results.contests.get((label, name))) for label in results.builds
        ]
        if any(cells):
            rows.append([plain(name), _unit(WORKLOADS[name]), *(cell or "-" for cell in cells)])
    return table(header, rows)


def _unit(workload: Workload) -> str:
    """Return the unit of what loaders are compared by."""
    return "ms" if workload.kind == "import" else UNITS[workload.figure]


def _against_best(results: Results, contest: Contest | None) -> str:
    """Return ThreadLoader's best by the best rival's."""
    if contest is None:
        return ""
    lanes = [lane for loader in contest.rivals for lane in contest.of(loader)]
    ratio, theirs = _against(results, contest, lanes)
    return f"{show_ratio(ratio)}: {_lane_name(theirs)}" if ratio and theirs else ""


def _against(
    results: Results, contest: Contest, lanes: Sequence[Lane]
) -> tuple[Spread | None, Lane | None]:
    """Return ThreadLoader's best by that of others, so that more than 1 is better, and theirs."""
    workload, rounds = WORKLOADS[contest.workload], results.rounds
    figure, most = figure_of(workload), workload.more_is_better
    ours = rounds.best(contest.of("threadloader"), figure, most=most)
    theirs = rounds.best(lanes, figure, most=most)
    return rounds.ratio(*((ours, theirs) if most else (theirs, ours)), figure), theirs


def _lane_name(lane: Lane) -> str:
    workers = lane.question.workers
    one = len(LOADERS[lane.question.loader].workers) == 1
    return LOADERS[lane.question.loader].title + ("" if one else f" x{workers}")


def targets(source: Source) -> str:
    """List the project's own targets, and what became of them."""
    found: dict[tuple[str, str], dict[str, Verdict]] = {}
    for verdict in judge(source.bench.rounds, source.bench.ordered()):
        if verdict.outcome != "not measured":
            found.setdefault((verdict.workload, verdict.claim), {})[verdict.build] = verdict
    header = ["workload", "figure", "target", *source.bench.builds]
    rows = []
    for (workload, claim), by_build in found.items():
        first = next(iter(by_build.values()))
        cells = [_verdict(by_build.get(label)) for label in source.bench.builds]
        rows.append([plain(workload), claim, f"{first.sense} {_bounds(by_build)}", *cells])
    return table(header, rows)


def _bounds(by_build: Mapping[str, Verdict]) -> str:
    """Return the bound, or those of all builds where they differ."""
    bounds = {f"{verdict.bound:.3g}" for verdict in by_build.values()}
    if len(bounds) == 1:
        return bounds.pop()
    return ", ".join(f"{verdict.bound:.3g} on {build}" for build, verdict in by_build.items())


def _verdict(verdict: Verdict | None) -> str:
    if verdict is None:
        return "-"
    text = show_ratio(verdict.figure)
    return f"**{text}: missed**" if verdict.outcome == "missed" else f"{text}: met"


def ahead(source: Source) -> str:
    """List the rivals that are ahead, and say why where that is known."""
    rows = [
        [
            plain(found.workload),
            found.build,
            f"{LOADERS[found.loader].title} x{found.workers}",
            show_ratio(found.ratio),
            found.excused or "**ahead**",
        ]
        for found in rivals_ahead(source.bench.rounds, source.bench.ordered())
    ]
    if not rows:
        return "No rival is ahead in anything that it takes part in."
    header = ["workload", "Python", "rival", "times ThreadLoader's best", ""]
    return table(header, rows)


def rivals(source: Source) -> str:
    """Return a table for each workload: all loaders, on all builds side by side."""
    results = source.bench
    names = dict.fromkeys(contest.workload for contest in results.ordered())
    return "\n\n".join(_rivals_of(results, name) for name in names)


def _rivals_of(results: Results, name: str) -> str:
    """Return one of the tables."""
    workload = WORKLOADS[name]
    figure = figure_of(workload)
    contests = {
        label: results.contests[label, name]
        for label in results.builds
        if (label, name) in results.contests
    }
    unit = _unit(workload)
    header = ["loader", "workers"]
    for label in contests:
        header += [f"{label}: {unit}", "CPU us a sample", "MiB added"]
    keys = dict.fromkeys(
        (lane.question.loader, lane.question.workers)
        for loader in LOADERS
        for contest in contests.values()
        for lane in contest.of(loader)
    )
    rows = []
    for loader, workers in keys:
        row = [LOADERS[loader].title, str(workers)]
        for contest in contests.values():
            lane = contest.lane(loader, workers)
            row += [
                show_spread(results.rounds.spread(lane, figure)),
                _median(results, lane, "cpu_us_per_sample"),
                _median(results, lane, "pss_added_mib"),
            ]
        rows.append(row)
    return f"### {plain(name).capitalize()}\n\n{workload.title}.\n\n{table(header, rows)}"


def _median(results: Results, lane: Lane | None, name: str) -> str:
    spread = results.rounds.spread(lane, lambda answer: getattr(answer, name))
    return show_number(spread.median) if spread else "-"


def left_out(source: Source) -> str:
    """List who does not take part, and why; and who failed."""
    reasons: dict[str, dict[str, list[str]]] = {}
    for contest in source.bench.ordered():
        for loader, why in contest.left_out.items():
            by_reason = reasons.setdefault(f"{LOADERS[loader].title} on {contest.build.label}", {})
            by_reason.setdefault(why, []).append(plain(contest.workload))
        for lane in contest.lanes:
            if lane in source.bench.rounds.errors:
                name = f"{_lane_name(lane)} on {contest.build.label}"
                why = f"failed: `{source.bench.rounds.errors[lane][:120]}`"
                reasons.setdefault(name, {}).setdefault(why, []).append(plain(contest.workload))
    every = len({contest.workload for contest in source.bench.ordered()})
    lines = [
        f"- {name}: {why}" + ("" if len(where) > every - 4 else f" ({', '.join(where)})")
        for name, by_reason in reasons.items()
        for why, where in by_reason.items()
    ]
    return "\n".join(lines) or "All take part."


def of_workload(name: str) -> Callable[[Source], str]:
    """Return what makes the table of one workload, for the page on what it is about."""

    def block(source: Source) -> str:
        results = source.bench
        if not any(key[1] == name for key in results.contests):
            return "Not measured yet."
        return _rivals_of(results, name).partition("\n\n")[2]

    return block


def gil(source: Source) -> str:
    """Return the rates by threads, builds side by side, and what one thread costs."""
    results = source.builds
    if not results.contests:
        return "Not measured yet."
    names = dict.fromkeys(contest.workload for contest in results.ordered())
    header = ["workload", "loader", "threads", *results.builds]
    rows = []
    for name in names:
        contests = {label: results.contests.get((label, name)) for label in results.builds}
        keys = dict.fromkeys(
            (lane.question.loader, lane.question.workers)
            for contest in contests.values()
            if contest
            for lane in contest.lanes
        )
        for loader, workers in keys:
            cells = [
                show_spread(results.rounds.spread(contest.lane(loader, workers), rate))
                if contest
                else "-"
                for contest in contests.values()
            ]
            rows.append([plain(name), LOADERS[loader].title, str(workers), *cells])
    costs = [f"- {line}" for name in names for line in _single_thread_costs(results, name)]
    return "\n".join([table(header, rows), "", *costs])


def _single_thread_costs(results: Results, name: str) -> list[str]:
    """Say how fast one thread of each free-threaded build is, relative to its twin."""
    lines = []
    for label in results.builds:
        mine = results.contests.get((label, name))
        twin = results.contests.get((label.removesuffix("t"), name))
        if not label.endswith("t") or mine is None or twin is None:
            continue
        for loader in ("bare_loop", "threadloader"):
            ratio = results.rounds.ratio(mine.lane(loader, 1), twin.lane(loader, 1), rate)
            lines.append(
                f"{plain(name)}, one thread, {LOADERS[loader].title}: {label} has "
                f"{show_ratio(ratio)} of the rate of {twin.build.label}"
            )
    return lines


def gil_machine(source: Source) -> str:
    """Say what the builds were measured on."""
    return _machine(source.builds)


def going_on(source: Source) -> str:
    """Return how long each kind of order takes to go on, and how large its state is."""
    if not source.resuming:
        return "Not measured yet."
    rows = [
        [kind, f"{figures['ms']:.1f}", f"{figures['bytes']:.0f}"]
        for kind, figures in source.resuming["going on"].items()
    ]
    return table(["order, samples", "ms to the next batch", "bytes of the state"], rows)


def agreeing(source: Source) -> str:
    """Return what ranks wait for one another before the first batch."""
    if not source.resuming:
        return "Not measured yet."
    names = ("first batch", "next epoch", "not sharded")
    rows = [
        [ranks, *(f"{figures[name]:.2f}" for name in names)]
        for ranks, figures in source.resuming["agreement"].items()
    ]
    header = [
        "ranks",
        "first batch, ms",
        "first batch of a later epoch, ms",
        "without `shard=`, ms",
    ]
    return table(header, rows)


def symptoms(source: Source, figure: str) -> str:
    """Return a figure of `benches.symptoms` by Python, way to load, and number of workers."""
    if not source.symptoms:
        return "Not measured yet."
    rows, workers = list[list[str]](), list[str]()
    for label, told in source.symptoms.items():
        for way, cells in told[figure].items():
            workers = list(cells)
            rows.append([label, way, *(f"{each:,.0f}" for each in cells.values())])
    return table(["Python", "", *(f"{number} workers" for number in workers)], rows)


def gpu(source: Source) -> str:
    """Return the loops on a GPU, the machine, and the number of workers of each."""
    if not source.gpu:
        return "Not measured yet."
    rows, notes = dict[tuple[str, str], list[str]](), list[str]()
    for label, told in source.gpu.items():
        best = list[str]()
        for title, lanes in told["lanes"].items():
            if title.startswith("trials: "):
                best.append(f"{title.removeprefix('trials: ')} {min(lanes, key=lanes.__getitem__)}")
                continue
            nbytes = int(title.split()[0]) << 20
            for loop, timings in lanes.items():
                steps = [each["step_ms"] for each in timings if each]
                spreads = (steps, [nbytes / step / 1e6 for step in steps])
                row = rows.setdefault((title, loop), [])
                row.extend(show_spread(Spread.of(each)) for each in spreads)
        machine, checks = told["machine"], told["checks"]
        checked = sum(check["batches"] for check in checks)
        wrong = sum(check["problem"] is not None for check in checks)
        versions = f"Python {machine['python_version']}, torch {machine['packages']['torch']}"
        hardware = f"{machine['gpu']}; {machine['cores']} cores, {machine['processor']}"
        compared = f"{checked:,} batches compared on the device"
        notes += [
            f"- {label}: {versions}, {hardware}",
            f"- {label}, workers, the best of several: {', '.join(best)}",
            f"- {label}: {compared}; checks that found one wrong: {wrong}",
        ]
    builds = [f"{label}: {unit}" for label in source.gpu for unit in ("ms a step", "GB/s")]
    header = ["a batch", "loop", *builds]
    return "\n".join(
        [table(header, [[*names, *cells] for names, cells in rows.items()]), "", *notes]
    )


BLOCKS: dict[str, Callable[[Source], str]] = {
    "machine": machine,
    "workloads": workloads,
    "against_torch": against_torch,
    "headline": headline,
    "targets": targets,
    "ahead": ahead,
    "rivals": rivals,
    "left_out": left_out,
    "gil": gil,
    "gil_machine": gil_machine,
    "self_driving": lambda source: driving.self_driving(source.self_driving),
    "interference": lambda source: driving.interference(source.interference),
    "gpu": gpu,
    "libraries": lambda source: driving.libraries(source.libraries),
    "batching": lambda source: batching.batching(source.token_batches),
    "packing": lambda source: batching.packing(source.token_batches),
    "resuming": lambda source: batching.resuming(source.token_batches),
    "going_on": going_on,
    "symptoms_memory": lambda source: symptoms(source, "mib"),
    "symptoms_start": lambda source: symptoms(source, "ms"),
    "agreeing": agreeing,
    "arrays": of_workload("arrays"),
    "tensor_dataset": of_workload("tensor_dataset"),
    "tar_zst": of_workload("tar_zst"),
}
