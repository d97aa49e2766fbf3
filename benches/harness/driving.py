"""What the default number of threads reaches, and what loading costs the consumer, as Markdown."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

__all__ = ["interference", "self_driving"]

NONE = "Not measured yet."


def self_driving(told: Mapping[str, Any]) -> str:
    """Return what `benches.self_driving` has found, a row for each workload and build."""
    if not told:
        return NONE
    rows = []
    for name, builds in told["workloads"].items():
        for build, found in builds.items():
            ratios = [f"{ratio:.2f}" for ratio in found["ratios"].values()]
            threads = str(found["threads"][-1][1])
            rows.append([name.replace("_", " "), build, *ratios, found["best"], threads])
    header = [
        *("workload", "Python", "after 5 s", "second epoch", "whole, of a bare loop"),
        *("best fixed number", "found"),
    ]
    return _table(header, rows)


def interference(told: Mapping[str, Any]) -> str:
    """Return what `benches.interference` has found, a row for each way of loading and build."""
    if not told:
        return NONE
    rows = [
        [way, build, *(f"{figures[name]:.2f}" for name in ("step", "p99", "with waiting"))]
        for build, found in told["builds"].items()
        for way, figures in found["ratios"].items()
    ]
    return _table(["loading", "Python", "step", "p99 of a step", "step and waiting"], rows)


def _table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a Markdown table."""
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)
