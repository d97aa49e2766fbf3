"""The figures of a run as aligned plain text."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from benches.harness.contest import figure_of
from benches.harness.rounds import Lane, Rounds, Spread, first_batch
from benches.loaders.catalog import LOADERS
from benches.workloads.catalog import WORKLOADS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from benches.harness.contest import Contest
    from benches.harness.record import Answer
    from benches.harness.targets import Ahead, Verdict

__all__ = [
    "ahead_lines",
    "align",
    "checklist",
    "contest_table",
    "machine_lines",
    "remarks",
    "show_ratio",
    "show_spread",
]

FIGURES = {
    "rate": "samples/s",
    "first_batch_ms": "first batch, ms",
    "process_ms": "process, ms",
    "pss_mib": "memory, MiB",
}
BUSY = 0.1  # cores that others used: beyond it a run says that it was disturbed


def align(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a table: the first column to the left, all others to the right."""
    lines = [header, *rows]
    widths = [max(len(line[column]) for line in lines) for column in range(len(header))]
    text = []
    for line in lines:
        cells = [line[0].ljust(widths[0])]
        cells += [cell.rjust(width) for cell, width in zip(line[1:], widths[1:], strict=True)]
        text.append("  ".join(cells).rstrip())
    text.insert(1, "  ".join("-" * width for width in widths))
    return "\n".join(text)


def show_number(value: float) -> str:
    """Return a number with three digits or more."""
    if abs(value) >= 1000:
        return f"{value:,.0f}"
    return f"{value:.3g}"


def show_spread(spread: Spread | None) -> str:
    """Return ``median (lowest to highest)``."""
    if spread is None:
        return "-"
    low, high = show_number(spread.low), show_number(spread.high)
    return f"{show_number(spread.median)} ({low} to {high})" if low != high else low


def show_ratio(spread: Spread | None, decimals: int = 2) -> str:
    """Return the ratio's median and extremes with some decimals."""
    if spread is None:
        return "-"
    low, high = f"{spread.low:.{decimals}f}", f"{spread.high:.{decimals}f}"
    return f"{spread.median:.{decimals}f} ({low} to {high})" if low != high else low


def contest_table(rounds: Rounds, contest: Contest) -> str:
    """Return the table of one workload on one interpreter."""
    workload = WORKLOADS[contest.workload]
    header = [
        "loader",
        "workers",
        FIGURES[workload.figure],
        "x ThreadLoader",
        "x bare loop",
        "first batch, ms",
        "CPU us/sample",
        "MiB added",
        "faults/batch",
        "slots",
    ]
    rows = [_row(rounds, contest, lane) for lane in contest.lanes]
    title = f"{contest.workload} on {contest.build.label}: {workload.title}"
    left_out = "".join(
        f"\n- {LOADERS[loader].title}: {why}" for loader, why in contest.left_out.items()
    )
    return f"{title}\n{align(header, rows)}{remarks(rounds, contest.lanes)}{left_out}"


def _row(rounds: Rounds, contest: Contest, lane: Lane) -> list[str]:
    """Return the cells of one lane."""
    figure = figure_of(WORKLOADS[contest.workload])
    return [
        LOADERS[lane.question.loader].title,
        str(lane.question.workers),
        show_spread(rounds.spread(lane, figure)),
        show_ratio(rounds.ratio(lane, contest.ours, figure)),
        show_ratio(rounds.ratio(lane, contest.bare, figure)),
        show_spread(rounds.spread(lane, first_batch)),
        _median(rounds, lane, "cpu_us_per_sample"),
        _median(rounds, lane, "pss_added_mib"),
        _median(rounds, lane, "faults_per_batch"),
        _slots(rounds.of(lane)),
    ]


def _median(rounds: Rounds, lane: Lane, name: str) -> str:
    """Return the median of one field of the answers."""
    spread = rounds.spread(lane, lambda answer: getattr(answer, name))
    return show_number(spread.median) if spread else "-"


def _slots(answers: list[Answer]) -> str:
    """Return the most slots that a loader made in any round."""
    made = [a.counters["slots_made"] for a in answers if "slots_made" in a.counters]
    return f"{max(made):.0f}" if made else "-"


def remarks(rounds: Rounds, lanes: Sequence[Lane]) -> str:
    """Return lines on what is wrong with the figures of some lanes, a newline before each."""
    text = ""
    for lane in lanes:
        answers = rounds.of(lane)
        if lane in rounds.errors:
            last = rounds.errors[lane].strip().rpartition("\n")[2]
            text += f"\n! {lane.name} failed: {last}"
        if any(answer.uncached for answer in answers):
            text += f"\n! {lane.name}: modules without a .pyc: {answers[0].uncached}"
        if any(a.machine["gil_enabled"] and a.machine["free_threaded"] for a in answers):
            text += f"\n! {lane.name}: the GIL was turned on by an extension module"
    busy = [a.other_cores_busy for lane in lanes for a in rounds.of(lane)]
    disturbed = [cores for cores in busy if cores is not None and cores > BUSY]
    if disturbed:
        text += (
            f"\n! {len(disturbed)} of {len(busy)} measurements shared the machine with others, "
            f"who used up to {max(disturbed):.1f} cores"
        )
    return text


def checklist(verdicts: Sequence[Verdict]) -> str:
    """Return the targets with what became of them."""
    header = ["target", "on", "asked", "found", "outcome"]
    rows = [
        [
            f"{verdict.workload}: {verdict.claim}",
            verdict.build,
            f"{verdict.sense} {verdict.bound:g}",
            show_ratio(verdict.figure, decimals=3),
            verdict.outcome if verdict.outcome != "missed" else "MISSED",
        ]
        for verdict in verdicts
    ]
    return align(header, rows)


def ahead_lines(rivals: Sequence[Ahead]) -> str:
    """Return the rivals that are ahead, or that none is."""
    if not rivals:
        return "no rival is ahead"
    rows = [
        [
            f"{found.workload}: {LOADERS[found.loader].title} x{found.workers}",
            found.build,
            show_ratio(found.ratio, decimals=3),
            found.excused or "AHEAD",
        ]
        for found in rivals
    ]
    return align(["rivals that are ahead", "on", "x ThreadLoader's best", "excused"], rows)


def machine_lines(builds: Sequence[tuple[str, dict[str, Any]]]) -> str:
    """Return what the run is on: the machine once, then a line for each interpreter."""
    machine = builds[0][1]
    hardware = f"{machine['processor']}, {machine['cores']} cores, {machine['architecture']}"
    lines = [f"{hardware}, {machine['system']}, load {machine['load']}"]
    for label, told in builds:
        packages = told["packages"]
        versions = ", ".join(f"{name} {version}" for name, version in packages.items() if version)
        gil = "GIL on" if told["gil_enabled"] else "GIL off"
        lines.append(f"{label}: {told['python_version']}, {gil}; {versions}")
    return "\n".join(lines)
