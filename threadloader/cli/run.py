"""``threadloader run``: a training script as it is, with threads in place of torch's workers."""

from __future__ import annotations

import argparse
import os
import sys
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from threadloader.cli.arguments import CommandError, printable, whole, write_json
from threadloader.cli.terminal import in_seconds, table

if TYPE_CHECKING:
    from collections.abc import Mapping

    from threadloader.cli.run_report import RunReport


COLUMNS = (
    *("DataLoader made at", "loaded by", "batches", "first batch", "waited", "share"),
    "batches/s",
)
HELP = "run a training script with threads in place of DataLoader's processes"
DESCRIPTION = """\
Run a training script unchanged. Threads load the batches of each torch.utils.data.DataLoader, also
of those that frameworks make. torch loads where the script asks for processes or needs its own
thread; the table at the end, on stderr, has the reasons. Output, arguments, exit code and errors
are the script's own.
"""


def add_to(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    parser.usage = "threadloader run [options] (SCRIPT | -m MODULE) [ARGUMENT ...]"
    add = parser.add_argument
    add("--steps", type=whole(1), metavar="N", help="end when a loader has delivered N batches")
    threads = "threads of each loader of a map-style dataset (default: its num_workers)"
    add("--threads", type=whole(1), metavar="N", help=threads)
    add("--torch", action="store_true", help="only measure torch's own loaders")
    add("--json", type=Path, metavar="FILE", help="write the figures to a file")
    add("-m", dest="module", nargs=argparse.REMAINDER, help="a module to run")
    add("script", nargs=argparse.REMAINDER, help="the script and its arguments")


def run(arguments: argparse.Namespace) -> int:
    """Run the command.

    Returns:
        The exit code of the script.

    Raises:
        CommandError: There is no script, or it can't be found; or no folder for ``--json``.
        SystemExit: From the script.
    """
    words = arguments.script if arguments.module is None else arguments.module
    words = words[1:] if words[:1] == ["--"] else words
    if not words:
        raise CommandError("name a script, or a module after -m", code=2)
    if arguments.json is not None and not arguments.json.absolute().parent.is_dir():
        raise CommandError(f"can't write {printable(arguments.json)}: no such folder", code=2)
    from threadloader.cli.exchange import exchange_methods, when_imported
    from threadloader.cli.program import run_program, traceback_of
    from threadloader.cli.run_report import RunReport

    report = RunReport(arguments.steps)
    when_imported(
        lambda module: exchange_methods(
            module, report, threads=arguments.threads, replace=not arguments.torch
        )
    )
    here = os.getpid()
    try:
        run_program(words, is_module=arguments.module is not None)
        return 0
    except CommandError:  # there is nothing that has run
        here = -1
        raise
    except SystemExit:
        raise
    except BaseException as error:  # noqa: BLE001  # shown as the interpreter would show it
        error = error.with_traceback(traceback_of(error))
        sys.excepthook(type(error), error, error.__traceback__)
        return 130 if isinstance(error, KeyboardInterrupt) else 1
    finally:
        if os.getpid() == here:  # not in a process that the script has forked
            _finish(arguments, report)


def _finish(arguments: argparse.Namespace, report: RunReport) -> None:
    """Write the table, and the file."""
    content = report.as_json()
    rank = os.environ.get("RANK")
    # The script's end is its own: a reader that has closed a pipe changes no exit code here.
    with suppress(OSError, ValueError, AttributeError):
        sys.stdout.flush()
    head = f"threadloader run{f', rank {rank}' if rank else ''}: {in_seconds(content['seconds'])}"
    if not content["loaders"]:
        head += "; no DataLoader of torch's was iterated over in this process"
    with suppress(OSError, ValueError):
        print("\n".join([head, *_lines(content)]), file=sys.stderr)
    if (path := arguments.json) is not None:
        write_json(path.with_stem(f"{path.stem}-{rank}") if rank else path, content)


def _lines(report: Mapping[str, Any]) -> list[str]:
    """Return a table of the loaders, by the places where they were made."""
    rows, remarks = [], []
    for each in report["loaders"]:
        first, rate = each["first_batch_seconds"], each["batches_a_second"]
        if reason := each["left_alone_because"]:
            remarks.append(f"* {each['made_at']} is left to torch: {reason}")
        cells = (
            each["made_at"],
            each["loaded_by"] + " *" * bool(reason),
            f"{each['batches']:,}",
            "-" if first is None else f"{first * 1e3:,.0f} ms",
            in_seconds(each["wait_seconds"]),
            f"{each['wait_seconds'] / report['seconds']:.1%}",
            "-" if rate is None else f"{rate:,.1f}",
        )
        rows.append(cells)
    return [*table(COLUMNS, rows, 2), *remarks] if rows else []
