"""The headline: ThreadLoader against its rivals and the machine's limit.

``python -m benches.north_star --python python3.11 --python python3.13t``

Every measurement is a fresh process (`benches.harness.measurement` says what is timed), the
rounds are interleaved and each starts with another lane. torch's DataLoader is given
its best number of workers out of 0 to 3, found in trial rounds; where several
are close, all of them stay and the best one of the rounds themselves counts. Exit code 1
says that a target was missed; the checklist at the end says which.
"""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benches.harness.contest import Build, Contest, choose_torch_lanes, make_contest
from benches.harness.fresh_process import (
    MeasurementError,
    calibrate,
    describe,
    find_python,
    make_photos,
)
from benches.harness.rounds import Rounds
from benches.harness.tables import checklist, contest_table, machine_lines
from benches.harness.targets import Verdict, judge
from benches.workloads.catalog import WORKLOADS

if TYPE_CHECKING:
    from collections.abc import Sequence

TRIAL_ROUNDS = 2


def main() -> int:
    """Run the contests; return the exit code."""
    options = _options()
    workloads = options.workloads.split(",")
    try:
        builds = [_build(python) for python in options.python or [sys.executable]]
        told = [(build, describe(build.python)) for build in builds]
        if "photos" in workloads:
            make_photos([build.python for build in builds])
        spin = {
            build: calibrate(build.python) if "pure_python" in workloads else 0 for build in builds
        }
    except MeasurementError as error:
        print(error, file=sys.stderr)
        return 2
    cores = int(told[0][1]["cores"])
    print(machine_lines([(build.label, described) for build, described in told]))
    rounds, contests = Rounds(), []
    try:
        for workload in workloads:
            field = [
                make_contest(
                    workload,
                    build,
                    cores=cores,
                    threads=options.threads or cores,
                    seconds=options.seconds,
                    spin=spin[build],
                )
                for build in builds
            ]
            field = _try_torch(field, min(TRIAL_ROUNDS, options.rounds))
            rounds.run([lane for contest in field for lane in contest.lanes], options.rounds)
            contests += field
            for contest in field:
                print(f"\n{contest_table(rounds, contest)}", flush=True)
    finally:
        verdicts = judge(rounds, contests)
        if options.json:
            options.json.write_text(_report(told, rounds, verdicts))
    print(f"\n{checklist(verdicts)}")
    return int(any(verdict.outcome == "missed" for verdict in verdicts))


def _options() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(
        prog="python -m benches.north_star", description=(__doc__ or "").partition("\n")[0]
    )
    parser.add_argument(
        "--python", action="append", type=find_python, help="interpreter, repeatable (this one)"
    )
    parser.add_argument(
        "--workloads",
        default=",".join(WORKLOADS),
        help="comma-separated (%(default)s)",
    )
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--seconds", type=float, default=1.5, help="least time of a measurement")
    parser.add_argument("--threads", type=int, help="threads (as many as cores)")
    parser.add_argument("--json", type=Path, help="file for all figures")
    options = parser.parse_args()
    unknown = set(options.workloads.split(",")) - set(WORKLOADS)
    if unknown:
        parser.error(f"unknown workloads {sorted(unknown)}; there are {', '.join(WORKLOADS)}")
    if options.rounds < 1:
        parser.error(f"--rounds must be at least 1, got {options.rounds}")
    return options


def _build(python: str) -> Build:
    """Ask an interpreter what it is."""
    told = describe(python)
    label = str(told["python"])
    return Build(label, python, bool(told["free_threaded"]), bool(told["importable"]["torch"]))


def _try_torch(field: Sequence[Contest], rounds: int) -> list[Contest]:
    """Find out which numbers of workers torch's DataLoader may be best with."""
    trial = Rounds()
    trial.run([lane for contest in field for lane in contest.torch], rounds)
    for contest in field:
        for lane in contest.torch:
            rates = [f"{answer.rate:,.0f}/s" for answer in trial.of(lane)]
            print(f"trial: {lane.name}: {', '.join(rates) or 'failed'}", flush=True)
    return [choose_torch_lanes(contest, trial) for contest in field]


def _report(
    told: Sequence[tuple[Build, dict[str, Any]]], rounds: Rounds, verdicts: Sequence[Verdict]
) -> str:
    """Return everything that was measured as JSON."""
    lanes = [
        {
            "build": lane.build,
            "question": asdict(lane.question),
            "error": rounds.errors.get(lane),
            "answers": [answer and asdict(answer) for answer in answers],
        }
        for lane, answers in rounds.answers.items()
    ]
    builds = [{**asdict(build), **described} for build, described in told]
    targets = [asdict(verdict) for verdict in verdicts]
    return json.dumps({"builds": builds, "targets": targets, "lanes": lanes}, indent=1)


if __name__ == "__main__":
    sys.exit(main())
