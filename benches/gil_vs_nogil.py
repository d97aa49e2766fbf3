"""The cost of the GIL: ThreadLoader on builds with and without it, side by side.

``python -m benches.gil_vs_nogil 3.13=python3.13 3.13t=python3.13t``

Photos (which release the GIL) and pure Python (which does not) at 1, 2 ... threads.
All interpreters do the same work: one number of iterations for pure Python, calibrated
on the first, and NumPy batches also where torch is installed.  The figures go to
``benches/results``, from where `benches.figures` takes them.
"""

from __future__ import annotations

import sys
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from benches.harness.asking import (
    ROOT,
    KeptProcesses,
    MeasurementError,
    calibrate,
    describe,
    labelled_python,
    make_photos,
)
from benches.harness.blocks import gil
from benches.harness.command import command_line
from benches.harness.contest import Build, Contest
from benches.harness.machine import machine_lines
from benches.harness.record import Question
from benches.harness.results import Results
from benches.harness.rounds import Lane, Rounds

if TYPE_CHECKING:
    import argparse

RESULTS = ROOT / "benches" / "results" / "gil_vs_nogil.json"


def main() -> int:
    """Run the rounds, print the tables, return the exit code."""
    options = _options()
    try:
        pythons = [python for _, python in options.builds]
        make_photos([*pythons, sys.executable])
        spin = calibrate(pythons[0])
        told = {label: describe(python) for label, python in options.builds}
    except MeasurementError as error:
        print(error, file=sys.stderr)
        return 2
    print(machine_lines(told))
    cores = int(next(iter(told.values()))["cores"])
    run = datetime.now(UTC).strftime("%Y-%m-%d %H:%M:%S")
    results = Results(told)
    how = {"rounds": options.rounds, "seconds": options.seconds, "quick": options.quick}
    results.runs[run] = how | {"processes": "kept"}
    kept = KeptProcesses()
    rounds = Rounds(kept.ask, run)
    try:
        for workload in ("photos", "pure_python"):
            field = [
                _contest(workload, label, python, cores, options.seconds, spin)
                for label, python in options.builds
            ]
            lanes = [lane for contest in field for lane in contest.lanes]
            rounds.run(lanes, options.rounds)
            results.merge(field, rounds)
            print(rounds.remarks(lanes), flush=True)
    finally:
        kept.close()
    results.save(options.json)
    print(gil(results))
    return int(bool(rounds.errors))


def _options() -> argparse.Namespace:
    """Read the command line."""
    parser = command_line("gil_vs_nogil", __doc__)
    parser.add_argument("builds", nargs="+", type=labelled_python, metavar="label=python")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--seconds", type=float, default=1.0, help="least time of a measurement")
    parser.add_argument("--quick", action="store_true", help="3 rounds of 0.3 seconds")
    parser.add_argument("--json", type=Path, default=RESULTS, help="file for all figures")
    options = parser.parse_args()
    if options.quick:
        options.rounds, options.seconds = 3, 0.3
    return options


def _contest(
    workload: str, label: str, python: str, cores: int, seconds: float, spin: int
) -> Contest:
    """Return one build's lanes."""
    build = Build(label, python, bool(describe(python)["free_threaded"]))
    question = Question(workload, "bare_loop", 1, seconds, spin, output="numpy")
    threads = sorted({cores, *(1 << power for power in range(cores.bit_length()))})
    loaders = [("bare_loop", 1), ("processes", cores)]
    loaders += [("threadloader", count) for count in threads]
    lanes = tuple(
        Lane(label, python, replace(question, loader=loader, workers=workers))
        for loader, workers in loaders
    )
    return Contest(workload, build, cores, lanes)


if __name__ == "__main__":
    sys.exit(main())
