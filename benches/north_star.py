"""The headline: ThreadLoader against every rival, the machine's limit and its own targets.

``python -m benches.north_star --python python3.11 --python python3.13t``

Each loader of an interpreter has a process of its own (`benches.harness.measurement` says what is
timed), the rounds are interleaved and each starts with another lane.  In the first round of a
workload every rival takes part with every number of workers; one that is far behind then is not
measured again, and its figure is of that round.  What was delivered is compared with the dataset.

``--quick`` measures shorter, in fewer rounds, and leaves out numbers of workers that are rarely the
best: everything on two interpreters in half an hour.  Two rounds are always measured; after them
the clock decides (``--minutes``), so that every workload has its turn.  ``--workload``,
repeatable, measures a part; all is merged into one file of results, from which `benches.figures`
writes the documentation's tables and pictures.  Exit code 1 says that a target
was missed; the tables at the end say which, and which rivals are ahead.
"""

from __future__ import annotations

import math
import sys
import time
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benches.harness.asking import (
    ROOT,
    KeptProcesses,
    MeasurementError,
    calibrate,
    describe,
    find_python,
    make_photos,
)
from benches.harness.blocks import ahead, targets, workload_table
from benches.harness.command import command_line
from benches.harness.contest import Build, Contest, lanes_ahead, make_contest
from benches.harness.machine import machine_lines
from benches.harness.results import Results
from benches.harness.rounds import Rounds
from benches.harness.targets import judge
from benches.workloads.catalog import WORKLOADS

if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence

    from benches.harness.rounds import Lane

RESULTS = ROOT / "benches" / "results" / "bench.json"


@dataclass(frozen=True, slots=True)
class Pace:
    """How thoroughly is measured.

    Args:
        rounds: Of the lanes that are not far behind.
        seconds: Least time of a measurement.
        close: The part of the best rival's figure that a lane must reach in the first round to
            be measured again.
        minutes: For the whole run.  Each workload has an equal share; what one leaves, the next
            ones have.  Rounds beyond `LEAST_ROUNDS` are left out while the run is late.
    """

    rounds: int
    seconds: float
    close: float
    minutes: float


LEAST_ROUNDS = 2
THOROUGH = Pace(rounds=7, seconds=1.0, close=0.5, minutes=math.inf)
QUICK = Pace(rounds=4, seconds=0.2, close=0.9, minutes=26)


def main() -> int:
    """Run the contests; return the exit code."""
    options = _options()
    pace: Pace = options.pace
    # The longest last: they have what the others leave of their time.
    workloads = options.workload or list(reversed(WORKLOADS))
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
    print(machine_lines(told))
    run = datetime.now(UTC).strftime("%Y-%m-%d %H:%M:%S")
    results = Results.load(options.json)
    how = {"rounds": pace.rounds, "seconds": pace.seconds, "quick": options.quick}
    took: dict[str, float] = {}  # seconds of each workload
    how |= {"processes": "kept", "took": took}
    if pace.minutes < math.inf:
        print(f"planned: {pace.minutes:g} minutes", file=sys.stderr)
    results.runs[run] = how
    results.builds |= told
    start = time.monotonic()
    kept = KeptProcesses()
    rounds = Rounds(kept.ask, run)
    measured: list[Contest] = []
    try:
        for number, workload in enumerate(workloads, 1):
            begun = time.monotonic()
            due = start + 60 * pace.minutes * number / len(workloads)
            field = [
                make_contest(
                    workload,
                    build,
                    cores=cores,
                    threads=cores,
                    seconds=pace.seconds,
                    spin=spin[build],
                    quick=options.quick,
                )
                for build in builds
            ]
            field = _run(field, rounds, pace, kept, due)
            measured += field
            took[workload] = round((time.monotonic() - begun) / len(builds), 1)
            print(f"{workload}: {time.monotonic() - begun:.0f} s", file=sys.stderr)
            results.merge(field, rounds)
            results.save(options.json)
            lanes = [lane for contest in field for lane in contest.lanes]
            print(f"\n{workload_table(results, workload)}\n{rounds.remarks(lanes)}", flush=True)
    finally:
        kept.close()
    print(f"\nTargets that are missed:\n{targets(results)}\n\nRivals ahead:\n{ahead(results)}")
    return int(any(verdict.outcome == "missed" for verdict in judge(rounds, measured)))


def _options() -> argparse.Namespace:
    """Read the command line."""
    parser = command_line("north_star", __doc__)
    parser.add_argument(
        "--python", action="append", type=find_python, help="interpreter, repeatable (this one)"
    )
    parser.add_argument(
        "--workload", action="append", choices=WORKLOADS, help="repeatable (all)", metavar="NAME"
    )
    parser.add_argument("--quick", action="store_true", help="shorter, and fewer rounds")
    parser.add_argument("--rounds", type=int, help=f"{THOROUGH.rounds}, or {QUICK.rounds}")
    parser.add_argument("--seconds", type=float, help="least time of a measurement")
    parser.add_argument("--minutes", type=float, help=f"of the run, or {QUICK.minutes} if quick")
    parser.add_argument("--json", type=Path, default=RESULTS, help="file of results (%(default)s)")
    options = parser.parse_args()
    pace = QUICK if options.quick else THOROUGH
    options.pace = replace(
        pace,
        rounds=options.rounds or pace.rounds,
        seconds=options.seconds or pace.seconds,
        minutes=options.minutes or pace.minutes,
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
    field: Sequence[Contest], rounds: Rounds, pace: Pace, kept: KeptProcesses, due: float
) -> list[Contest]:
    """Measure one workload on all interpreters.

    Args:
        field: Its contests.
        rounds: Get the answers.
        pace: How thoroughly.
        kept: The processes.
        due: When it should be done, of `time.monotonic`, in seconds.
    """
    field = [_compare(contest, kept) for contest in field]
    rounds.run(_neighbours([lane for contest in field for lane in contest.lanes]), 1)
    if WORKLOADS[field[0].workload].figure != "pss_mib":  # which is the same in every round
        lanes = [lane for contest in field for lane in lanes_ahead(contest, rounds, pace.close)]
        lanes = _neighbours(lanes)
        for done in range(1, pace.rounds):
            if done >= LEAST_ROUNDS and time.monotonic() > due:
                break
            rounds.run(lanes, done + 1, done=done)
    return field


def _neighbours(lanes: Sequence[Lane]) -> list[Lane]:
    """Put what targets compare side by side: the machine may be another one a minute later."""
    compared = ("bare_loop", "processes", "threadloader_shared_rng", "threadloader")

    def place(lane: Lane) -> tuple[str, bool]:
        inline = lane.question.loader == "torch_dataloader" and not lane.question.workers
        return lane.build, not (inline or lane.question.loader in compared)

    return sorted(lanes, key=place)


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
        print(f"  compare: {lane.name}", file=sys.stderr)
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
