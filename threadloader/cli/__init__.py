"""The ``threadloader`` command: its subcommands and their exit codes.

A subcommand is a module with `HELP` and `DESCRIPTION`, with ``add_to(parser)``, which adds its
arguments, and with ``run(arguments)``, which returns the exit code.  These modules are cheap to
import: a command imports what it needs (Pillow, the loader) when it runs, so ``--help`` works
wherever NumPy does.
"""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING

from threadloader._version import __version__
from threadloader.cli import bench, check, demo, doctor, run
from threadloader.cli.arguments import CommandError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

__all__ = ["main"]

COMMANDS = (bench, check, demo, doctor, run)
INTERRUPTED = 128 + 2  # exit code that a shell reports for a process that SIGINT ended


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line.

    Args:
        argv: Arguments without the program's name; by default those of this process.

    Returns:
        The exit code: 0 done, 1 failed, 2 wrong request, 130 interrupted.

    Raises:
        SystemExit: From argparse, after ``--help``, ``--version`` or wrong arguments.
    """
    arguments = _parser().parse_args(argv)
    call: Callable[[argparse.Namespace], int] = arguments.run
    try:
        return call(arguments)
    except CommandError as error:
        print(f"threadloader {arguments.command}: error: {error}", file=sys.stderr)
        return error.code
    except KeyboardInterrupt:
        print(f"threadloader {arguments.command}: interrupted", file=sys.stderr)
        return INTERRUPTED


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="threadloader",
        description="A data loader for PyTorch and NumPy whose workers are threads.",
    )
    parser.add_argument("--version", action="version", version=f"threadloader {__version__}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    for command in COMMANDS:
        name = command.__name__.rpartition(".")[2]
        words = {"help": command.HELP, "description": command.DESCRIPTION}
        one = commands.add_parser(name, **words, allow_abbrev=False)
        command.add_to(one)
        one.set_defaults(run=command.run)
    return parser
