"""The builds of Python that a bench compares, as its command line names them."""

from __future__ import annotations

import argparse
from pathlib import Path

from benches.harness.fresh_process import find_python

__all__ = ["parse_builds", "thread_counts"]


def thread_counts(cores: int) -> list[int]:
    """Return 1, 2, 4 ... and the number of cores."""
    counts = [1]
    while counts[-1] * 2 < cores:
        counts.append(counts[-1] * 2)
    return [*counts, cores] if cores > 1 else counts


def parse_builds(
    bench: str, purpose: str | None, *, rounds: int, seconds: float, results: Path | None = None
) -> argparse.Namespace:
    """Read the command line of a bench that compares builds of Python.

    Args:
        bench: The module's name.
        purpose: Its docstring.
        rounds: Unless the user says otherwise, like `seconds`.
        seconds: Least time of a measurement.
        results: The file for all figures.
    """
    parser = argparse.ArgumentParser(
        prog=f"python -m benches.{bench}", description=(purpose or "").partition("\n")[0]
    )
    parser.add_argument("builds", nargs="+", type=labelled_python, metavar="label=python")
    parser.add_argument("--rounds", type=int, default=rounds)
    parser.add_argument(
        "--seconds", type=float, default=seconds, help="least time of a measurement"
    )
    parser.add_argument("--quick", action="store_true", help="3 rounds of 0.3 seconds")
    parser.add_argument("--json", type=Path, default=results, help="file for all figures")
    options = parser.parse_args()
    if options.quick:
        options.rounds, options.seconds = 3, 0.3
    return options


def labelled_python(argument: str) -> tuple[str, str]:
    """Split ``label=python``."""
    label, separator, python = argument.partition("=")
    if not (label and separator and python):
        raise argparse.ArgumentTypeError(f"{argument!r} is not label=python")
    return label, find_python(python)
