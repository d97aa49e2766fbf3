"""``threadloader top``: what the loaders of a running process are in, from another terminal."""

from __future__ import annotations

import json
import os
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from threadloader.cli.arguments import CommandError, positive, printable, whole
from threadloader.cli.terminal import in_seconds, paragraph, table

if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence


DESCRIPTION = """\
Show what the loaders of a running process are in: batches ready, what each thread does, and the
verdict.  The process needs no preparation; it must be of the same user.
"""
SILENCE = """\
No loop of process {pid} has asked for a batch, or waited for one, for {seconds}: it is in a step of
its own, or in a sample that the calling thread makes; or it does not load with threadloader.
"""
POLL_SECONDS = 0.1  # until the first answer
SILENT_SECONDS = 3.0  # without an answer, which a loop that loads gives each second
GONE_SECONDS = 30.0  # behind the latest answer, after which another one is shown no more
CLEAR = "\033[H\033[J"


def add_to(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command to the program's."""
    parser = commands.add_parser(
        "top", help="watch the loaders of another process", description=DESCRIPTION
    )
    parser.add_argument("pid", type=whole(1), metavar="PID", help="the process")
    parser.add_argument(
        *("--seconds", "-s"), type=positive, default=1.0, metavar="S", help="from screen to screen"
    )
    parser.add_argument("--once", action="store_true", help="print one screen, and end")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Run the command.

    Raises:
        CommandError: There is no such process, or no private folder to ask in.
    """
    from threadloader._epoch.asked import ASKS_SECONDS, FOLDER, is_private

    folder, pid, began = Path(FOLDER), arguments.pid, time.time()
    if not _lives(pid):
        raise CommandError(f"there is no process {pid}", code=2)
    with suppress(OSError):  # which is told below
        folder.mkdir(mode=0o700, exist_ok=True)
    if not is_private(folder):
        raise CommandError(f"{folder} is not a folder of yours alone", code=2)
    asked = folder / str(pid)
    try:
        while _lives(pid):
            asked.touch()  # again and again: another `top` may have ended meanwhile
            silent, lines = _screen(folder, pid, began)
            if lines:
                _show([f"process {pid}, {time.strftime('%H:%M:%S')}", *lines], arguments.once)
                if arguments.once:
                    return int(silent)
            time.sleep(min(arguments.seconds, ASKS_SECONDS / 2) if lines else POLL_SECONDS)
        print(f"process {pid} has ended")
        return 0
    except KeyboardInterrupt:  # the way to end it
        return 0
    finally:
        for path in (asked, *folder.glob(f"{pid}-*")):
            with suppress(OSError):
                path.unlink()


def _screen(folder: Path, pid: int, began: float) -> tuple[bool, list[str]]:
    """Return whether no answer has come for a while, and the lines to show; none yet.

    Args:
        folder: Where answers are.
        pid: Of whom.
        began: When the first one was asked for; those before are of nobody who lives.
    """
    answers = [each for each in _answers(folder, pid) if each["time"] >= began]
    latest = max((each["time"] for each in answers), default=began)
    # An epoch before is left out, as a rule of a loader that is gone.
    shown = [each for each in answers if each["time"] >= latest - GONE_SECONDS]
    lines = [line for each in shown for line in _lines(each)]
    silent = time.time() - latest
    if silent > SILENT_SECONDS:
        lines += ["", paragraph(SILENCE.format(pid=pid, seconds=in_seconds(silent)))]
    return silent > SILENT_SECONDS, lines


def _lives(pid: int) -> bool:
    """Whether there may be such a process.

    Raises:
        CommandError: It is another user's.
    """
    if os.name == "nt":  # there signal 0 is Ctrl-C
        return True
    try:
        os.kill(pid, 0)
    except PermissionError as error:
        raise CommandError(f"process {pid} is another user's", code=2) from error
    except (ProcessLookupError, OverflowError):
        return False
    return True


def _answers(folder: Path, pid: int) -> list[dict[str, Any]]:
    """Return the latest answers of all loaders of a process."""
    answers = []
    for path in sorted(folder.glob(f"{pid}-*.json")):
        with suppress(OSError):  # another one that watches has ended, or it is just written
            answers.append(json.loads(path.read_text(encoding="utf-8")))
    return answers


def _show(lines: Sequence[str], once: bool) -> None:
    """Print a screen, over the one before on a terminal, which no name of a path controls."""
    lines = [printable(line) for each in lines for line in each.split("\n")]
    print("\n".join([CLEAR] * (sys.stdout.isatty() and not once) + lines), flush=True)


def _lines(told: dict[str, Any]) -> list[str]:
    """Return the lines of one loader."""
    rate, wait = told["samples_per_second"], told["wait_share"]
    figures = [
        f"batch {told['batches']:,}",
        *([] if rate is None else [f"{rate:,.0f} samples/s"]),
        *([] if wait is None else [f"the loop waits {wait:.0%}"]),
        f"{told['done']} of {told['planned']} batches ready",
        f"{told['threads']} threads" if told["threads"] else "no threads",
    ]
    age = time.time() - told["time"]
    ago = f", {in_seconds(age)} ago" if age > SILENT_SECONDS else ""
    lines = ["", told["loader"] + ago, paragraph(", ".join(figures), "  ", "  ")]
    if told["waits_seconds"] > 1:
        lines.append(f"  waits for a batch since {in_seconds(told['waits_seconds'])}")
    rows = [
        [str(task["thread"]), task["task"], in_seconds(task["seconds"]), task["place"]]
        for task in told["tasks"]
    ]
    if rows:
        lines += [f"  {line}" for line in table(("thread", "is in", "for", "at"), rows, 4)]
    if told["verdict"]:
        lines.append(paragraph(told["verdict"], "  ", "  "))
    return lines
