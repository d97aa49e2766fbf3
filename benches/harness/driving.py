"""What the default number of threads reaches, and what loading costs the consumer, as tables."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

__all__ = ["driven_rows", "interference", "interference_rows", "libraries", "self_driving"]

NONE = "Not measured yet."


def libraries(told: Mapping[str, Any]) -> str:
    """Return what `benches.libraries` has found as Markdown."""
    if not told:
        return NONE
    names = dict.fromkeys(name for found in told.values() for name in found["workloads"])
    header = ["library"]
    for label in told:
        header += [f"{label}: default", "by number", "CPU", "faster of torch's"]
    rows = [header]
    for name in names:
        row = [name]
        for found in told.values():
            each = found["workloads"].get(name)
            row += _library(each) if each else [""] * 4
        rows.append(row)
    measured = [f"- {label}: {found['date']}, {found['versions']}" for label, found in told.items()]
    return "\n".join([_table(rows), "", *measured])


def _library(told: Mapping[str, Any]) -> list[str]:
    figures = [f"{told[key]:.2f}" for key in ("default", "by number", "cpu")]
    ahead = (
        f" ({1 / told['of the better']:.1f} of the default)" if told["of the better"] < 1 else ""
    )
    return [*figures, f"{told['best']}{ahead}"]


def self_driving(told: Mapping[str, Any]) -> str:
    """Return what `benches.self_driving` has found as Markdown."""
    return _table(driven_rows(told)[0]) if told else NONE


def driven_rows(told: Mapping[str, Any]) -> tuple[list[list[str]], int]:
    """Return what `benches.self_driving` has found, and how many targets are missed.

    There is a header, a row for each workload and build, and one for each phase of data that
    changes.
    """
    least, missed = told["least"], 0

    def cell(what: str, spread: Mapping[str, float]) -> str:
        nonlocal missed
        good = spread["median"] >= least.get(what, 0.0)
        missed += not good
        return f"{_spread(spread)}{'' if good else ': missed'}"

    rows = [
        [
            *("workload", "Python", "after 5 s", "first epoch", "second epoch", "of the loop"),
            *("best fixed", "found", "noise"),
        ]
    ]
    for name, builds in told["workloads"].items():
        for build, found in builds.items():
            words, ratios, phases = name.replace("_", " "), found["ratios"], found["phases"]
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
    return rows, missed


def _threads(phase: Mapping[str, Any]) -> str:
    """Return the threads at the end of a phase, in all rounds."""
    found = sorted(set(phase["threads"]))
    return str(found[0]) if len(found) == 1 else f"{found[0]} to {found[-1]}"


def interference(told: Mapping[str, Any]) -> str:
    """Return what `benches.interference` has found as Markdown."""
    return _table(interference_rows(told)[0]) if told else NONE


def interference_rows(told: Mapping[str, Any]) -> tuple[list[list[str]], int]:
    """Return what `benches.interference` has found, and how many targets are missed.

    There is a header, and a row for each way of loading and build.
    """
    rows = [["loading", "Python", "step", "step and waiting", "p99 of a step", "p99, waiting"]]
    missed = 0
    for build, found in told["builds"].items():
        for way, figures in found["ways"].items():
            cells = [_spread(figures[what]) for what in ("step", "with waiting")]
            cells += [f"{figures[what]:.2f}" for what in ("p99", "p99 with waiting")]
            if way == "default" and not found["good"]:
                missed += 1
                cells[0] += ": missed"
            rows.append([way, build, *cells])
    return rows, missed


def _spread(spread: Mapping[str, float]) -> str:
    """Return ``median (low to high)``."""
    low, high = f"{spread['low']:.2f}", f"{spread['high']:.2f}"
    return f"{spread['median']:.2f} ({low} to {high})" if low != high else low


def _table(rows: Sequence[Sequence[str]]) -> str:
    """Return a Markdown table of a header and rows."""
    lines = [rows[0], ["---"] * len(rows[0]), *rows[1:]]
    text = (" | ".join(cell.replace(": missed", ": **missed**") for cell in line) for line in lines)
    return "\n".join(f"| {line} |" for line in text)
