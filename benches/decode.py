"""Images per second of each decoder, on several interpreters side by side.

``python -m benches.decode 3.11=python3.11 3.13=python3.13 3.13t=python3.13t``

Photos of 500x375, as they are and resized to 224, at 1, 2 ... threads of a ThreadLoader. Each
interpreter is measured with the decoders that it has installed; one that has Pillow-SIMD in
Pillow's place is an interpreter of its own. A core's share is the rate divided by the threads.
"""

from __future__ import annotations

import json
import sys
from dataclasses import asdict

from benches.harness.builds import parse_builds, thread_counts
from benches.harness.fresh_process import MeasurementError, decoders, describe, make_photos
from benches.harness.record import Question
from benches.harness.rounds import Lane, Rounds, Spread, rate
from benches.harness.tables import align, machine_lines, remarks, show_ratio, show_spread
from benches.workloads.catalog import SIDES


def main() -> int:
    """Run the rounds, print the table, return the exit code."""
    options = parse_builds("decode", __doc__, rounds=5, seconds=1.0)
    try:
        make_photos([*(python for _, python in options.builds), sys.executable])
        told = {label: describe(python) for label, python in options.builds}
        lanes = _lanes(options.builds, int(next(iter(told.values()))["cores"]), options.seconds)
    except MeasurementError as error:
        print(error, file=sys.stderr)
        return 2
    print(machine_lines(list(told.items())))
    rounds = Rounds()
    rounds.run(lanes, options.rounds)
    print(f"\n{_table(rounds, lanes)}{remarks(rounds, lanes)}")
    if options.json:
        answers = [
            {"build": lane.build, "answers": [asdict(answer) for answer in rounds.of(lane)]}
            for lane in lanes
        ]
        options.json.write_text(json.dumps({"builds": told, "lanes": answers}, indent=1))
    return int(bool(rounds.errors))


def _lanes(builds: list[tuple[str, str]], cores: int, seconds: float) -> list[Lane]:
    """Return everything that is measured, in the order of the table."""
    return [
        Lane(label, python, Question(f"{name} {side or 'full'}", "threadloader", threads, seconds))
        for side in SIDES
        for label, python in builds
        for name in decoders(python)
        for threads in thread_counts(cores)
    ]


def _table(rounds: Rounds, lanes: list[Lane]) -> str:
    """Return the table, a line for each decoder of an interpreter and size."""
    header = [
        "decoder",
        "side",
        "build",
        "threads",
        "images/s",
        "a core",
        "CPU us/image",
        "x Pillow",
    ]
    rows = []
    for lane in lanes:
        name, _, side = lane.question.workload.rpartition(" ")
        threads = lane.question.workers
        found = rounds.spread(lane, rate)
        share = found and Spread(found.median / threads, found.low / threads, found.high / threads)
        pillow = _pillow(lane, lanes)
        ratio = rounds.ratio(lane, pillow, rate) if pillow else None
        cpu = rounds.spread(lane, lambda answer: answer.cpu_us_per_sample)
        cells = [show_spread(found), show_spread(share), show_spread(cpu), show_ratio(ratio)]
        rows.append([name, side, lane.build, str(threads), *cells])
    return align(header, rows)


def _pillow(lane: Lane, lanes: list[Lane]) -> Lane | None:
    """Find what Pillow, or Pillow-SIMD in its place, does with the same build and threads."""
    side = lane.question.workload.rpartition(" ")[2]
    for other in lanes:
        name, _, its = other.question.workload.rpartition(" ")
        same = (other.build, other.question.workers, its)
        if name.startswith("pillow") and same == (lane.build, lane.question.workers, side):
            return other
    return None


if __name__ == "__main__":
    sys.exit(main())
