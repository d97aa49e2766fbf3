"""What the GIL costs: ThreadLoader on builds with and without it, side by side.

``python -m benches.gil_vs_nogil 3.13=python3.13 3.13t=python3.13t``

Photos (which release the GIL) and pure Python (which does not) at 1, 2 ... threads.
All interpreters do the same work: one number of iterations for pure Python, calibrated
on the first, and NumPy batches also where torch is installed. Twins, ``3.13`` and
``3.13t``, are compared at one thread: what the free-threaded build costs.  The figures go to
``benches/results``, from where `benches.figures` takes them.
"""

from __future__ import annotations

import sys
from dataclasses import replace
from datetime import UTC, datetime

from benches.harness.blocks import Source, gil
from benches.harness.builds import parse_builds, thread_counts
from benches.harness.contest import Build, Contest
from benches.harness.fresh_process import (
    ROOT,
    MeasurementError,
    calibrate,
    describe,
    make_photos,
)
from benches.harness.kept_processes import KeptProcesses
from benches.harness.record import Question
from benches.harness.results import Results
from benches.harness.rounds import Lane, Rounds
from benches.harness.tables import machine_lines, remarks

RESULTS = ROOT / "benches" / "results" / "gil_vs_nogil.json"


def main() -> int:
    """Run the rounds, print the tables, return the exit code."""
    options = parse_builds("gil_vs_nogil", __doc__, rounds=7, seconds=1.0, results=RESULTS)
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
    run = datetime.now(UTC).strftime("%Y-%m-%d %H:%M:%S")
    results = Results(told)
    results.runs[run] = {
        "rounds": options.rounds,
        "seconds": options.seconds,
        "quick": options.quick,
        "processes": "kept",
    }
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
            print(remarks(rounds, lanes), flush=True)
    finally:
        kept.close()
    results.save(options.json)
    print(gil(Source(Results(), results)))
    return int(bool(rounds.errors))


def _contest(
    workload: str, label: str, python: str, cores: int, seconds: float, spin: int
) -> Contest:
    """Return one build's lanes."""
    build = Build(label, python, bool(describe(python)["free_threaded"]))
    question = Question(workload, "bare_loop", 1, seconds, spin, output="numpy")
    loaders = [("bare_loop", 1), ("processes", cores)]
    loaders += [("threadloader", threads) for threads in thread_counts(cores)]
    lanes = tuple(
        Lane(label, python, replace(question, loader=loader, workers=workers))
        for loader, workers in loaders
    )
    return Contest(workload, build, cores, lanes)


if __name__ == "__main__":
    sys.exit(main())
