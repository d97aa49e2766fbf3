"""What the GIL costs: ThreadLoader on builds with and without it, side by side.

``python -m benches.gil_vs_nogil 3.13=python3.13 3.13t=python3.13t``

Photos (which release the GIL) and pure Python (which does not) at 1, 2 ... threads.
All interpreters do the same work: one number of iterations for pure Python, calibrated
on the first, and NumPy batches also where torch is installed. Twins, ``3.13`` and
``3.13t``, are compared at one thread: what the free-threaded build costs.
"""

from __future__ import annotations

import json
import sys
from dataclasses import asdict

from benches.harness.builds import parse_builds, thread_counts
from benches.harness.fresh_process import MeasurementError, calibrate, describe, make_photos
from benches.harness.record import Question
from benches.harness.rounds import Lane, Rounds, Spread, first_batch, rate
from benches.harness.tables import align, machine_lines, remarks, show_ratio, show_spread
from benches.workloads.catalog import WORKLOADS

TITLES = {"bare_loop": "bare loop", "processes": "limit (processes)"}


def main() -> int:
    """Run the rounds, print the tables, return the exit code."""
    options = parse_builds("gil_vs_nogil", __doc__, rounds=7, seconds=1.5)
    try:
        pythons = [python for _, python in options.builds]
        make_photos([*pythons, sys.executable])
        spin = calibrate(pythons[0])
        told = {label: describe(python) for label, python in options.builds}
    except MeasurementError as error:
        print(error, file=sys.stderr)
        return 2
    print(machine_lines(list(told.items())))
    cores = int(next(iter(told.values()))["cores"])
    rounds, lanes = Rounds(), []
    for workload in ("photos", "pure_python"):
        field = [
            Lane(
                label,
                python,
                Question(workload, loader, workers, options.seconds, spin, output="numpy"),
            )
            for loader, workers in (
                ("bare_loop", 1),
                ("processes", cores),
                *(("threadloader", threads) for threads in thread_counts(cores)),
            )
            for label, python in options.builds
        ]
        rounds.run(field, options.rounds)
        lanes += field
        print(f"\n{workload}: {WORKLOADS[workload].title}\n{_table(rounds, field)}")
        print(_single_thread_costs(rounds, field) + remarks(rounds, field), flush=True)
    if options.json:
        options.json.write_text(_report(told, rounds, lanes))
    return int(bool(rounds.errors))


def _lane(field: list[Lane], build: str, loader: str, workers: int | None = None) -> Lane | None:
    """Find a lane."""
    for lane in field:
        question = lane.question
        if (lane.build, question.loader) == (build, loader) and workers in (None, question.workers):
            return lane
    return None


def _table(rounds: Rounds, field: list[Lane]) -> str:
    """Return the table of one workload, the builds of each line of it side by side."""
    header = ["loader", "threads", "build", "GIL", "samples/s", "x limit", "first batch, ms"]
    rows = []
    for lane in field:
        limit = _lane(field, lane.build, "processes")
        answers = rounds.of(lane)
        gil = {answer.machine["gil_enabled"] for answer in answers}
        rows.append(
            [
                TITLES.get(lane.question.loader, lane.question.loader),
                str(lane.question.workers),
                lane.build,
                {frozenset({True}): "on", frozenset({False}): "off"}.get(frozenset(gil), "-"),
                show_spread(rounds.spread(lane, rate)),
                show_ratio(rounds.ratio(lane, limit, rate)) if limit else "-",
                show_spread(rounds.spread(lane, first_batch)),
            ]
        )
    return align(header, rows)


def _single_thread_costs(rounds: Rounds, field: list[Lane]) -> str:
    """Return how fast one thread of each free-threaded build is, relative to its twin."""
    lines = []
    for build in dict.fromkeys(lane.build for lane in field):
        for loader in ("bare_loop", "threadloader"):
            mine = _lane(field, build, loader, 1)
            twin = _lane(field, build.removesuffix("t"), loader, 1)
            if mine is None or twin is None or mine == twin:
                continue
            found: Spread | None = rounds.ratio(mine, twin, rate)
            title = TITLES.get(loader, loader)
            lines.append(
                f"one thread, {title}: {build} has {show_ratio(found)} of the rate of {twin.build}"
            )
    return "\n".join(lines)


def _report(told: dict[str, dict[str, object]], rounds: Rounds, lanes: list[Lane]) -> str:
    """Return everything that was measured as JSON."""
    answers = [
        {"build": lane.build, "answers": [asdict(answer) for answer in rounds.of(lane)]}
        for lane in lanes
    ]
    return json.dumps({"builds": told, "lanes": answers}, indent=1)


if __name__ == "__main__":
    sys.exit(main())
