"""Measure one loader on one workload in one fresh process, and print one JSON line.

``python -m benches.runner --workload photos --loader threadloader --workers 2``
"""

from __future__ import annotations

import argparse
import sys

from benches.harness.fresh_process import (
    MeasurementError,
    ask,
    calibrate,
    find_python,
    make_photos,
)
from benches.harness.machine import usable_cores
from benches.harness.record import Question
from benches.loaders.catalog import LOADERS
from benches.workloads.catalog import WORKLOADS


def main() -> None:
    """Read the command line, measure, print the line."""
    parser = argparse.ArgumentParser(
        prog="python -m benches.runner", description=(__doc__ or "").partition("\n")[0]
    )
    parser.add_argument("--workload", choices=WORKLOADS, required=True)
    parser.add_argument("--loader", choices=LOADERS, required=True)
    parser.add_argument("--workers", type=int, default=usable_cores())
    parser.add_argument("--seconds", type=float, default=2.0)
    parser.add_argument("--output", choices=["numpy"], help="for threadloader")
    parser.add_argument("--spin", type=int, help="iterations of pure_python")
    parser.add_argument(
        "--python", type=find_python, default=sys.executable, help="interpreter (this one)"
    )
    options = parser.parse_args()
    try:
        if options.workload == "photos":
            make_photos([options.python])
        spin = options.spin or 0
        if options.workload == "pure_python" and not spin:
            spin = calibrate(options.python)
        question = Question(
            options.workload,
            options.loader,
            options.workers,
            options.seconds,
            spin,
            options.output,
        )
        print(ask(options.python, question).to_json())
    except MeasurementError as error:
        parser.exit(1, f"{error}\n")


if __name__ == "__main__":
    main()
