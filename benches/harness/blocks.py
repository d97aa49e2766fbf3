"""The figures of the documentation as Markdown, each block a function of one file of results."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

from benches.harness.tables import Spread, markdown, show_number, show_ratio, show_spread
from benches.harness.targets import Verdict, judge, rivals_ahead
from benches.loaders.catalog import LOADERS
from benches.workloads.catalog import WORKLOADS

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from benches.harness.contest import Contest
    from benches.harness.results import Results
    from benches.harness.rounds import Lane

__all__ = [
    "BLOCKS",
    "ahead",
    "batching",
    "gil",
    "interference",
    "libraries",
    "library_row",
    "self_driving",
    "symptoms",
    "targets",
    "workload_table",
]

UNITS = {"rate": "samples/s", "first_batch_ms": "ms to the first batch", "pss_mib": "MiB"}
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


def _plain(workload: str) -> str:
    """Return a workload's name in words."""
    return workload.replace("_", " ")


def _title(lane: Lane) -> str:
    """Return a lane in words, with its number of workers where a loader has several."""
    entry = LOADERS[lane.question.loader]
    return entry.title + ("" if len(entry.workers) == 1 else f" x{lane.question.workers}")


# Of `benches.north_star` and `benches.gil_vs_nogil`.


def machine(results: Results) -> str:
    """Say what was measured on, when, and how."""
    first = next(iter(results.builds.values()))
    lines = [f"- {first['cores']} cores of a machine with {first['processor']}, {first['system']}"]
    for label, told in results.builds.items():
        versions = [f"{name} {v}" for name, v in told["packages"].items() if v]
        lines.append(f"- {label}: Python {told['python_version']}, {', '.join(versions)}")
    for run, how in results.runs.items():
        lanes = [lane for lane, name in results.rounds.runs.items() if name == run]
        disturbed, known = results.rounds.disturbed(lanes)
        busy = f"in {disturbed} of {known} measurements others used more than a tenth of a core"
        lines.append(
            f"- {run} UTC: medians of up to {how['rounds']} rounds of {how['seconds']:g} s at "
            f"least{', quick' if how['quick'] else ''}; "
            f"{busy if disturbed else 'nothing else ran on it'}"
        )
    return "\n".join(lines)


def workloads(results: Results) -> str:
    """List what is loaded."""
    names = dict.fromkeys(contest.workload for contest in results.ordered())
    rows = [[_plain(name), WORKLOADS[name].title] for name in names]
    return markdown(["workload", "what it is"], rows)


def against_torch(results: Results) -> str:
    """Compare ThreadLoader's best with torch's DataLoader, in-process and with workers."""
    header = ["", "compared by"]
    for label in results.builds:
        header += [f"{label}: times torch in-process", "times torch's best with workers"]
    rows = []
    for name, title in AGAINST_TORCH.items():
        row = [title, UNITS[WORKLOADS[name].figure]]
        for label in results.builds:
            contest = results.contests.get((label, name))
            theirs = contest.of("torch_dataloader") if contest else []
            for with_workers in (False, True):
                lanes = [lane for lane in theirs if bool(lane.question.workers) is with_workers]
                ratio, _ = _better(results, contest, lanes)
                row.append(show_number(ratio.median) if ratio else "-")
        rows.append(row)
    return markdown(header, rows)


def headline(results: Results) -> str:
    """Compare ThreadLoader with the best rival of each workload."""
    rows = []
    for name in dict.fromkeys(contest.workload for contest in results.ordered()):
        cells = []
        for label in results.builds:
            contest = results.contests.get((label, name))
            lanes = (
                [lane for loader in contest.rivals for lane in contest.of(loader)]
                if contest
                else []
            )
            ratio, theirs = _better(results, contest, lanes)
            cells.append(f"{show_ratio(ratio)}: {_title(theirs)}" if ratio and theirs else "-")
        if set(cells) != {"-"}:
            rows.append([_plain(name), UNITS[WORKLOADS[name].figure], *cells])
    builds = (f"{label}: times the best rival" for label in results.builds)
    return markdown(["workload", "compared by", *builds], rows)


def _better(
    results: Results, contest: Contest | None, lanes: list[Lane]
) -> tuple[Spread | None, Lane | None]:
    """Return ThreadLoader's best by that of others, so that more than 1 is better, and theirs."""
    if contest is None:
        return None, None
    return results.rounds.better(contest.of("threadloader"), lanes, contest.figure)


def targets(results: Results) -> str:
    """List the project's own targets that are missed, and say how many are met."""
    found: dict[tuple[str, str], dict[str, Verdict]] = {}
    verdicts = judge(results.rounds, results.ordered())
    for verdict in verdicts:
        if verdict.outcome == "missed":
            found.setdefault((verdict.workload, verdict.claim), {})[verdict.build] = verdict
    rows = []
    for (workload, claim), by_build in found.items():
        bounds = {f"{verdict.sense} {verdict.bound:.3g}" for verdict in by_build.values()}
        cells = [
            show_ratio(by_build[label].figure) if label in by_build else ""
            for label in results.builds
        ]
        rows.append([_plain(workload), claim, " or ".join(sorted(bounds)), *cells])
    counts = Counter((verdict.build, verdict.outcome) for verdict in verdicts)
    met = (f"{counts[label, 'met']} on {label}" for label in results.builds)
    header = ["workload", "figure", "target", *results.builds]
    return f"{markdown(header, rows)}\n\nTargets that are met: {', '.join(met)}."


def ahead(results: Results) -> str:
    """List the rivals that are ahead beyond the spread of the rounds, the farthest first."""
    rows = []
    for name in dict.fromkeys(contest.workload for contest in results.ordered()):
        cells = []
        for label in results.builds:
            contest = results.contests.get((label, name))
            found = rivals_ahead(results.rounds, contest) if contest else []
            told = (
                f"{LOADERS[lane.question.loader].title} x{lane.question.workers} {ratio.median:.2f}"
                for lane, ratio in found
            )
            cells.append(", ".join(told))
        if any(cells):
            rows.append([_plain(name), *cells])
    return markdown(["workload", *results.builds], rows) if rows else "No rival is ahead."


def left_out(results: Results) -> str:
    """List who does not take part, and why; and who failed."""
    reasons: dict[str, dict[str, None]] = {}
    for contest in results.ordered():
        for loader, why in contest.left_out.items():
            name = f"{LOADERS[loader].title} on {contest.build.label}"
            reasons.setdefault(why, {})[name] = None
        for lane in contest.lanes:
            if lane in results.rounds.errors:
                where = f"{_title(lane)} on {contest.build.label}, {_plain(contest.workload)}"
                why = f"failed: `{results.rounds.errors[lane][:120]}`"
                reasons.setdefault(why, {})[where] = None
    lines = [f"- {why}: {', '.join(names)}" for why, names in reasons.items()]
    return "\n".join(lines) or "All take part."


def workload_table(results: Results, name: str) -> str:
    """Return the table of one workload: all loaders, on all builds side by side."""
    contests = {
        label: results.contests[label, name]
        for label in results.builds
        if (label, name) in results.contests
    }
    header = ["loader", "workers"]
    for label in contests:
        header += [f"{label}: {UNITS[WORKLOADS[name].figure]}", "CPU us a sample", "MiB added"]
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
            lane = next(iter(contest.of(loader, workers)), None)
            row.append(show_spread(results.rounds.spread(lane, contest.figure)))
            for figure in ("cpu_us_per_sample", "pss_added_mib"):
                spread = results.rounds.spread(lane, figure)
                row.append(show_number(spread.median) if spread else "-")
        rows.append(row)
    return f"{WORKLOADS[name].title}.\n\n{markdown(header, rows)}"


def gil(results: Results) -> str:
    """Return the rates by threads, builds side by side."""
    rows = []
    for name in dict.fromkeys(contest.workload for contest in results.ordered()):
        contests = [results.contests[label, name] for label in results.builds]
        for lane in contests[0].lanes:
            key = lane.question.loader, lane.question.workers
            cells = [
                show_spread(results.rounds.spread(next(iter(contest.of(*key)), None), "rate"))
                for contest in contests
            ]
            rows.append([_plain(name), LOADERS[key[0]].title, str(key[1]), *cells])
    return markdown(["workload", "loader", "threads", *results.builds], rows)


# Of benches that write their own files.


def libraries(told: Mapping[str, Any]) -> str:
    """Return what `benches.libraries` has found."""
    names = dict.fromkeys(name for found in told.values() for name in found["workloads"])
    header = ["library"]
    for label in told:
        header += [f"{label}: default", "by number", "CPU", "faster of torch's"]
    rows = []
    for name in names:
        row = [name]
        for found in told.values():
            each = found["workloads"].get(name)
            row += library_row(each) if each else [""] * 4
        rows.append(row)
    measured = [f"- {label}: {found['date']}, {found['versions']}" for label, found in told.items()]
    return "\n".join([markdown(header, rows), "", *measured])


def library_row(told: Mapping[str, Any]) -> list[str]:
    """Return the cells of one library on one build."""
    figures = [f"{told[key]:.2f}" for key in ("default", "by number", "cpu")]
    of_best = told["of the better"]
    return [
        *figures,
        told["best"] + (f" ({1 / of_best:.1f} of the default)" if of_best < 1 else ""),
    ]


def everyday(told: Mapping[str, Any]) -> str:
    """Return what `benches.libraries` has found of code that needs no library."""
    names = dict.fromkeys(name for found in told.values() for name in found["workloads"])
    header, rows = ["code"], [[name] for name in names]
    for label, found in told.items():
        header += [f"{label}: default", "of none", "by number"]
        for row in rows:
            each = found["workloads"].get(row[0])
            shown = ("default", "of none", "by number")
            row += [f"{each[key]:.2f}" if each else "" for key in shown]
    measured = "; ".join(f"{label}: {found['date']}" for label, found in told.items())
    return f"{markdown(header, rows)}\n\n{measured}"


def self_driving(told: Mapping[str, Any]) -> str:
    """Return what `benches.self_driving` has found.

    There is a row for each workload and build, and one for each phase of data that changes.
    """

    def cell(what: str, spread: Mapping[str, float]) -> str:
        good = spread["median"] >= told["least"].get(what, 0.0)
        return f"{_spread(spread)}{'' if good else ': **missed**'}"

    header = [
        *("workload", "Python", "after 5 s", "first epoch", "second epoch", "of the loop"),
        *("best fixed", "found", "noise"),
    ]
    rows = []
    for name, builds in told["workloads"].items():
        for build, found in builds.items():
            words, ratios, phases = _plain(name), found["ratios"], found["phases"]
            whole = [cell(what, ratios[what]) for what in ("first epoch", "second epoch")]
            whole += [cell("of the loop", ratios["of the loop"]), found["best"]]
            changes = len(phases) > 1
            for number, phase in enumerate(phases if changes else ()):
                again = " again" if number > 1 else ""
                after = cell("after 5 s", phase["after 5 s"])
                about = [f"{words}: {phase['kind']}{again}", build, after, "", "", ""]
                rows.append([*about, phase["best"], _threads(phase), ""])
            after = "" if changes else cell("after 5 s", phases[0]["after 5 s"])
            about = [f"{words}: all" if changes else words, build, after]
            threads = "" if changes else _threads(phases[0])
            rows.append([*about, *whole, threads, _spread(ratios["noise"])])
    return markdown(header, rows)


def _threads(phase: Mapping[str, Any]) -> str:
    """Return the threads at the end of a phase, in all rounds."""
    found = sorted(set(phase["threads"]))
    return str(found[0]) if len(found) == 1 else f"{found[0]} to {found[-1]}"


def interference(told: Mapping[str, Any]) -> str:
    """Return what `benches.interference` has found: a row for each way of loading and build."""
    rows = []
    for build, found in told["builds"].items():
        for way, figures in found["ways"].items():
            cells = [_spread(figures[what]) for what in ("step", "with waiting")]
            cells += [f"{figures[what]:.2f}" for what in ("p99", "p99 with waiting")]
            if way == "default" and not found["good"]:
                cells[0] += ": **missed**"
            rows.append([way, build, *cells])
    header = ["loading", "Python", "step", "step and waiting", "p99 of a step", "p99, waiting"]
    return markdown(header, rows)


def _spread(told: Mapping[str, float]) -> str:
    return show_ratio(Spread(told["median"], told["low"], told["high"]))


def batching(told: Mapping[str, Any]) -> str:
    """Return what `benches.token_batches` has found: a row for each way to make batches."""
    kinds = told["batching"]
    header = [""]
    for kind in kinds:
        header += [f"{kind}: padding", "largest batch", "useful", "with attention"]
    best_first = sorted(kinds["instructions"].items(), key=lambda way: -way[1]["useful, 8 ranks"])
    rows = []
    for way, _ in best_first:
        row = [way]
        for found in kinds.values():
            row += [f"{found[way]['padding']:.1%}", f"{found[way]['largest batch']:.2f}"]
            row += [
                f"{found[way][f'{each}, 8 ranks']:.1%}" for each in ("useful", "with attention")
            ]
        rows.append(row)
    costs = [found["TokenBatches"]["us a batch"] for found in kinds.values()]
    cost = f"`TokenBatches` takes {min(costs):.0f} to {max(costs):.0f} us a batch."
    return f"{markdown(header, rows)}\n\n{cost}"


def symptoms(told: Mapping[str, Any], figure: str) -> str:
    """Return a figure of `benches.symptoms` by Python, way to load, and number of workers."""
    rows = [
        [label, way, *(f"{each:,.0f}" for each in cells.values())]
        for label, of_build in told.items()
        for way, cells in of_build[figure].items()
    ]
    return markdown(["Python", "", "0 workers", "4 workers", "8 workers"], rows)


def gpu(told: Mapping[str, Any]) -> str:
    """Return the loops on a GPU, the machine, and the number of workers of each."""
    rows, notes = dict[tuple[str, str], list[str]](), list[str]()
    for label, found in told.items():
        best = list[str]()
        for title, lanes in found["lanes"].items():
            if title.startswith("trials: "):
                count = min(lanes, key=lanes.__getitem__, default="-")
                best.append(f"{title.removeprefix('trials: ')} {count}")
                continue
            nbytes = int(title.split()[0]) << 20
            for loop, timings in lanes.items():
                steps = [each["step_ms"] for each in timings if each]
                spreads = (steps, [nbytes / step / 1e6 for step in steps])
                row = rows.setdefault((title, loop), [])
                row.extend(show_spread(Spread.of(each)) for each in spreads)
        machine, checks = found["machine"], found["checks"]
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
    builds = [f"{label}: {unit}" for label in told for unit in ("ms a step", "GB/s")]
    lines = [[*names, *cells] for names, cells in rows.items()]
    return "\n".join([markdown(["a batch", "loop", *builds], lines), "", *notes])


#: The file in `benches/results` that a block is of, and what makes it.
BLOCKS: dict[str, tuple[str, Callable[[Any], str]]] = {
    **{
        block.__name__: ("bench", block)
        for block in (machine, workloads, against_torch, headline, targets, ahead, left_out)
    },
    "arrays": ("bench", lambda results: workload_table(results, "arrays")),
    "tar_zst": ("bench", lambda results: workload_table(results, "tar_zst")),
    "gil": ("gil_vs_nogil", gil),
    "gil_machine": ("gil_vs_nogil", machine),
    "self_driving": ("self_driving", self_driving),
    "interference": ("interference", interference),
    "libraries": ("libraries", libraries),
    "everyday": ("everyday", everyday),
    "gpu": ("gpu", gpu),
    "batching": ("token_batches", batching),
    "symptoms_memory": ("symptoms", lambda told: symptoms(told, "mib")),
    "symptoms_start": ("symptoms", lambda told: symptoms(told, "ms")),
}
