"""``threadloader check``: whether a dataset of the user's is safe in threads."""

from __future__ import annotations

import faulthandler
import sys
from time import perf_counter
from typing import TYPE_CHECKING

from threadloader.cli.arguments import CommandError, made_dataset, positive
from threadloader.cli.terminal import show_progress

if TYPE_CHECKING:
    import argparse

    from threadloader._check.findings import Report


LINE_SECONDS = 10.0  # between two lines that tell how far it is, where there is no terminal
HELP = "check whether a dataset is thread-safe"
DESCRIPTION = """\
Load samples of a dataset one by one, then in many threads that switch as often as possible. Each
finding has its line and a remedy. The exit code is 0 without findings, 1 with findings, and 2
without a sample to check.
"""


def add_to(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    add = parser.add_argument
    name = "a dataset, or a function without arguments that returns one; also FILE.py:DATASET"
    add("dataset", metavar="MODULE:DATASET", help=name)
    copy = "the part of the dataset that each worker copies (default: %(default)s)"
    add("--dataset-copy", choices=("auto", "shared", "deep"), default="auto", help=copy)
    index = "load this sample; repeat for more (default: 16, spread over the dataset)"
    add("--index", type=int, action="append", metavar="I", help=index)
    seconds = "the time for all samples (default: %(default)g)"
    add("--seconds", type=positive, default=120, metavar="S", help=seconds)


def run(arguments: argparse.Namespace) -> int:
    """Run the command.

    Raises:
        CommandError: There is no such dataset, or none of its samples can be loaded.
    """
    from threadloader._check.checking import UncheckableError, check

    if not faulthandler.is_enabled():  # where C code that is not thread-safe ends the process
        faulthandler.enable(2)  # the process's own standard error
    dataset = made_dataset(arguments.dataset)
    try:
        report = check(
            dataset,
            dataset_copy=arguments.dataset_copy,
            indices=arguments.index,
            seconds=arguments.seconds,
            tell=_Progress(),
        )
    except (TypeError, UncheckableError) as error:
        raise CommandError(f"{arguments.dataset}: {error}", code=2) from error
    finally:
        show_progress()
    print(_in_words(report, arguments.dataset))
    return 1 if report.findings else 0


class _Progress:
    """Tells how many samples were loaded: slow ones take a while."""

    def __init__(self) -> None:
        self._next = perf_counter() + LINE_SECONDS

    def __call__(self, number: int) -> None:
        text = f"samples loaded: {number:,}"
        show_progress(text)
        if perf_counter() > self._next and not sys.stderr.isatty():
            self._next += LINE_SECONDS
            print(f"threadloader check: {text}", file=sys.stderr, flush=True)


def _in_words(report: Report, name: str) -> str:
    count = len(report.findings)
    found = f"{count} finding{'s' * (count > 1)}"
    if not count:
        found = "nothing found" + " in what was looked at, see the notes" * bool(report.notes)
    lines = [*map(str, report.findings), *(f"note: {note}" for note in report.notes)]
    tried = f"{report.loads} samples loaded one by one, {report.together:,} by many threads"
    return "\n".join([*lines, f"{name}: {found} ({tried})"])
