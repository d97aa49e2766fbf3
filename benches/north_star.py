"""The headline: ThreadLoader against every rival, the machine's limit and its own targets.

``python -m benches.north_star --python python3.11 --python python3.13t``

Each loader of an interpreter has a process of its own (`benches.harness.measurement` says what is
timed), the rounds are interleaved and each starts with another lane.  In the first round of a
workload every rival takes part with every number of workers; one that is far behind then is not
measured again, and its figure is of that round.  What was delivered is compared with the dataset.

``--quick`` measures shorter, in fewer rounds, and leaves out numbers of workers that are rarely the
best: everything on two interpreters in a quarter of an hour.  ``--workload`` and ``--rival``,
repeatable, measure a part; all is merged into one file of results, from which `benches.figures`
writes the documentation's tables and pictures.  Exit code 1 says that a target was missed or a
rival is ahead; the checklist at the end says which.
"""

from __future__ import annotations

import argparse
import sys
import time
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benches.harness.contest import Build, Contest, lanes_ahead, make_contest, with_footprint
from benches.harness.fresh_process import (
    ROOT,
    MeasurementError,
    ask,
    calibrate,
    describe,
    find_python,
    make_photos,
)
from benches.harness.kept_processes import KeptProcesses
from benches.harness.results import Results
from benches.harness.rounds import Rounds
from benches.harness.tables import ahead_lines, checklist, contest_table, machine_lines
from benches.harness.targets import judge, rivals_ahead
from benches.loaders.catalog import LOADERS
from benches.workloads.catalog import DECODING, WORKLOADS

if TYPE_CHECKING:
    from collections.abc import Sequence

RESULTS = ROOT / "benches" / "results" / "bench.json"
NAMES = tuple(name for name in WORKLOADS if name not in DECODING)


@dataclass(frozen=True, slots=True)
class Pace:
    """How thoroughly is measured.

    Args:
        rounds: Of the lanes that are not far behind.
        seconds: Least time of a measurement.
        close: The part of the best rival's figure that a lane must reach in the first round to
            be measured again.
    """

    rounds: int
    seconds: float
    close: float


THOROUGH = Pace(rounds=7, seconds=1.0, close=0.5)
QUICK = Pace(rounds=2, seconds=0.2, close=0.9)


def main() -> int:
    """Run the contests; return the exit code."""
    options = _options()
    pace: Pace = options.pace
    workloads = options.workload or list(NAMES)
    try:
        builds = [_build(python) for python in options.python or [sys.executable]]
        told = {build.label: describe(build.python) for build in builds}
        make_photos([build.python for build in builds])
        spin = {
            build: calibrate(build.python) if "pure_python" in workloads else 0 for build in builds
        }
    except MeasurementError as error:
        print(error, file=sys.stderr)
        return 2
    cores = int(told[builds[0].label]["cores"])
    print(machine_lines(list(told.items())))
    run = datetime.now(UTC).strftime("%Y-%m-%d %H:%M:%S")
    results = Results.load(options.json)
    how = {"rounds": pace.rounds, "seconds": pace.seconds, "quick": options.quick}
    results.runs[run] = how | {"processes": "fresh" if options.fresh else "kept"}
    results.builds |= told
    kept = KeptProcesses()
    rounds = Rounds(ask if options.fresh else kept.ask, run)
    measured: list[Contest] = []
    try:
        for workload in workloads:
            begun = time.monotonic()
            field = [
                make_contest(
                    workload,
                    build,
                    cores=cores,
                    threads=options.threads or cores,
                    seconds=pace.seconds,
                    spin=spin[build],
                    rivals=options.rival or (),
                    quick=options.quick,
                )
                for build in builds
            ]
            if not (options.fresh or WORKLOADS[workload].fresh):
                kept.prepare([lane for contest in field for lane in contest.lanes], cores)
            field = _run(field, rounds, pace, kept)
            measured += field
            for contest in field:
                print(f"\n{contest_table(rounds, contest)}", flush=True)
            print(f"{workload}: {time.monotonic() - begun:.0f} s", file=sys.stderr)
            results.merge(field, rounds, options.rival or ())
            results.save(options.json)
    finally:
        kept.close()
    verdicts, ahead = judge(rounds, measured), rivals_ahead(rounds, measured)
    print(f"\n{checklist(verdicts)}\n\n{ahead_lines(ahead)}")
    missed = any(verdict.outcome == "missed" for verdict in verdicts)
    return int(missed or any(found.excused is None for found in ahead))


def _options() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(
        prog="python -m benches.north_star", description=(__doc__ or "").partition("\n")[0]
    )
    parser.add_argument(
        "--python", action="append", type=find_python, help="interpreter, repeatable (this one)"
    )
    parser.add_argument(
        "--workload", action="append", choices=NAMES, help="repeatable (all)", metavar="NAME"
    )
    rivals = [name for name in LOADERS if name != "threadloader"]
    parser.add_argument(
        "--rival", action="append", choices=rivals, help="repeatable (all)", metavar="NAME"
    )
    parser.add_argument("--quick", action="store_true", help="shorter, and fewer rounds")
    parser.add_argument("--rounds", type=int, help=f"{THOROUGH.rounds}, or {QUICK.rounds}")
    parser.add_argument("--seconds", type=float, help="least time of a measurement")
    parser.add_argument("--fresh", action="store_true", help="a process for each measurement")
    parser.add_argument("--threads", type=int, help="threads (as many as cores)")
    parser.add_argument("--json", type=Path, default=RESULTS, help="file of results (%(default)s)")
    options = parser.parse_args()
    pace = QUICK if options.quick else THOROUGH
    options.pace = replace(
        pace, rounds=options.rounds or pace.rounds, seconds=options.seconds or pace.seconds
    )
    if options.pace.rounds < 1:
        parser.error(f"--rounds must be at least 1, got {options.pace.rounds}")
    return options


def _build(python: str) -> Build:
    """Ask an interpreter what it is."""
    told: dict[str, Any] = describe(python)
    packages = frozenset(name for name, there in told["importable"].items() if there)
    return Build(str(told["python"]), python, bool(told["free_threaded"]), packages)


def _run(
    field: Sequence[Contest], rounds: Rounds, pace: Pace, kept: KeptProcesses
) -> list[Contest]:
    """Measure one workload on all interpreters."""
    field = [_compare(contest, kept) for contest in field]
    rounds.run([lane for contest in field for lane in contest.lanes], 1)
    if field[0].workload == "bandwidth":
        field = [with_footprint(contest, rounds) for contest in field]
        limits = [contest.limit for contest in field if contest.limit is not None]
        rounds.run(limits, 1)
    if WORKLOADS[field[0].workload].figure != "pss_mib":  # which is the same in every round
        lanes = [lane for contest in field for lane in lanes_ahead(contest, rounds, pace.close)]
        rounds.run(lanes, pace.rounds, done=1)
    return field


def _compare(contest: Contest, kept: KeptProcesses) -> Contest:
    """Let each loader deliver a short epoch, and compare it with the dataset.

    A loader that fails fails visibly in the first round as well; one that delivers other samples
    does not take part.
    """
    if WORKLOADS[contest.workload].slow:
        return contest
    compared, left_out = dict(contest.compared), dict(contest.left_out)
    for loader in dict.fromkeys(lane.question.loader for lane in contest.lanes):
        if loader == "processes":
            continue
        lane = contest.of(loader)[-1]
        try:
            compared[loader] = kept.compare(lane.python, lane.question)
        except MeasurementError as error:
            print(f"! {lane.name}: {error}", file=sys.stderr)
            if "samples were not delivered" in str(error):
                left_out[loader] = str(error).strip().rpartition("\n")[2]
    lanes = tuple(lane for lane in contest.lanes if lane.question.loader not in left_out)
    return replace(contest, lanes=lanes, compared=compared, left_out=left_out)


if __name__ == "__main__":
    sys.exit(main())
