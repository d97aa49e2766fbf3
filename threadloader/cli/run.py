"""``threadloader run``: a training script as it is, with threads in place of torch's workers."""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from threadloader.cli.argument_types import whole
from threadloader.cli.errors import CommandError, printable
from threadloader.cli.program import Program, traceback_of

if TYPE_CHECKING:
    from threadloader._replacement.report import RunReport

__all__ = ["add_to"]

STEPS = 50  # of --compare
HASHED = 10  # batches of each loader that --compare looks at: to hash them takes time
DESCRIPTION = """\
Run a training script without an edit. Each torch.utils.data.DataLoader in it is loaded by threads,
also those that frameworks make; the few that ask for processes, or for the script's own thread,
are left to torch, and the table at the end says why. The table goes to stderr; the script's output,
its arguments, its exit code and its errors are its own.
"""


def add_to(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command to the program's."""
    parser = commands.add_parser(
        "run",
        help="run a training script with threads in place of DataLoader's processes",
        usage="threadloader run [options] (SCRIPT | -m MODULE) [ARGUMENT ...]",
        description=DESCRIPTION,
        allow_abbrev=False,
    )
    parser.add_argument(
        "--compare",
        action="store_true",
        help="run some steps with threads and some without, and show both",
    )
    parser.add_argument(
        "--steps",
        type=whole(1),
        metavar="N",
        help=f"end when a loader has delivered N batches (default of --compare: {STEPS})",
    )
    parser.add_argument(
        "--threads",
        type=whole(1),
        metavar="N",
        help="threads of each loader of a map-style dataset (default: its num_workers, or if that "
        "is 0, ThreadLoader's default)",
    )
    parser.add_argument(
        "--torch", action="store_true", help="leave every loader to torch, and only measure"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures to a file")
    parser.add_argument("--hashed", type=whole(0), default=0, help=argparse.SUPPRESS)
    parser.add_argument("-m", dest="module", nargs=argparse.REMAINDER, help="a module to run")
    parser.add_argument("script", nargs=argparse.REMAINDER, help="the script and its arguments")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Run the command.

    Returns:
        The exit code: that of the script, or of the run of `--compare` that failed.

    Raises:
        CommandError: There is no script, or it can't be found.
        SystemExit: From the script.
    """
    words = arguments.module if arguments.module is not None else arguments.script
    words = words[1:] if words[:1] == ["--"] else words
    if not words:
        raise CommandError("name a script, or a module after -m", code=2)
    program = Program(words[0], tuple(words[1:]), is_module=arguments.module is not None)
    return _compare(arguments, program) if arguments.compare else _run(arguments, program)


def _run(arguments: argparse.Namespace, program: Program) -> int:
    from threadloader._replacement.methods import Exchange
    from threadloader._replacement.report import RunReport
    from threadloader.cli.torch_import import when_imported

    report = RunReport(arguments.steps, arguments.hashed)
    when_imported(
        lambda module: Exchange(
            module, report, threads=arguments.threads, replace=not arguments.torch
        ).install()
    )
    here = os.getpid()
    try:
        program.run()
        return 0
    except (CommandError, SystemExit):
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
    from threadloader.cli.loader_table import reported

    content = report.as_json()
    rank = os.environ.get("RANK")
    if not arguments.hashed:
        # The script's end is its own: a reader that has closed a pipe changes no exit code here.
        with suppress(OSError, ValueError, AttributeError):
            sys.stdout.flush()
        with suppress(OSError, ValueError):
            print("\n".join(reported(content, f", rank {rank}" if rank else "")), file=sys.stderr)
    if arguments.json is not None:
        path = arguments.json
        if rank:
            path = path.with_stem(f"{path.stem}-{rank}")
        _write(path, content)


def _write(path: Path, content: Any) -> None:
    """Write JSON to a file that the user named.

    Raises:
        CommandError: It can't be written.
    """
    try:
        path.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
    except OSError as error:
        raise CommandError(f"can't write {printable(path)}: {error.strerror or error}") from error


def _compare(arguments: argparse.Namespace, program: Program) -> int:
    """Run the program twice in processes of their own, and write both tables as one."""
    from threadloader.cli.loader_table import compared

    steps = arguments.steps or STEPS
    options = ["--steps", str(steps), "--hashed", str(HASHED)]
    ours = [] if arguments.threads is None else ["--threads", str(arguments.threads)]
    with tempfile.TemporaryDirectory() as folder:
        # Threads first: what the first run leaves in the system's cache of files helps the second.
        reports = {
            way: _in_process(program, [*options, *more], Path(folder, f"{way}.json"))
            for way, more in (("threads", ours), ("torch", ["--torch"]))
        }
    print(f"\nthreadloader run --compare: {steps} steps each way", file=sys.stderr)
    print("\n".join(compared(reports["torch"], reports["threads"])), file=sys.stderr)
    if arguments.json is not None:
        _write(arguments.json, reports)
    return 0


def _in_process(program: Program, options: list[str], file: Path) -> dict[str, Any]:
    """Run the program in a new process, and return its report.

    Raises:
        CommandError: It failed, with its exit code.
    """
    target = (["-m"] if program.is_module else []) + [program.target, *program.arguments]
    words = ["-m", "threadloader", "run", "--json", str(file), *options, *target]
    way = "with torch" if "--torch" in options else "with threads"
    print(f"threadloader run --compare: {way}", file=sys.stderr, flush=True)
    flags = subprocess._args_from_interpreter_flags()  # type: ignore[attr-defined]  # noqa: SLF001  # as multiprocessing does
    environment = {key: value for key, value in os.environ.items() if key != "RANK"}
    command = [sys.executable, *flags, *words]
    done = subprocess.run(command, check=False, env=environment)  # noqa: S603  # the user's own
    if done.returncode or not file.exists():
        raise CommandError(
            f"{printable(program.target)} failed {way}, with exit code {done.returncode}",
            code=done.returncode if 0 < done.returncode < 256 else 1,
        )
    report: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    return report
