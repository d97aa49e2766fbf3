"""What an epoch is in, for `threadloader top` in another process: written when that asks for it.

    top makes a folder for its user alone, and touches a file there again and again: FOLDER/PID
    the loop, once a second, finds it -> writes FOLDER/PID-EPOCH.json -> top shows it

Nothing listens, and nobody but the user can ask, or read the answer.
"""

from __future__ import annotations

import json
import os
import stat
import sys
import time
import traceback
from contextlib import suppress
from itertools import dropwhile
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Any

from threadloader._epoch.hanging import is_ours, task_of
from threadloader._report.interval import interval_of
from threadloader._report.reports import judged
from threadloader._tuning.tuner import gil_is_enabled

if TYPE_CHECKING:
    from threadloader._tuning.tuner import Tuner
    from threadloader._work.progress import Progress
    from threadloader._work.stats import Stats


# One place for all shells and jobs of a user, whatever their TMPDIR.
FOLDER = (
    f"/tmp/threadloader-{os.getuid()}"  # noqa: S108  # `is_private` is asked before it is used
    if hasattr(os, "getuid")
    else f"{os.environ.get('LOCALAPPDATA', '.')}\\threadloader-top"
)
ASKS_SECONDS = 60.0  # after which a file that is not touched asks no more: its `top` was killed
_LIBRARY = str(Path(os.__file__).parent)


def is_asked() -> bool:
    """Whether `threadloader top` asks this process what it is in; in 3 us."""
    try:
        asked = os.stat(f"{FOLDER}/{os.getpid()}").st_mtime  # noqa: PTH116  # a Path takes longer
    except OSError:
        return False
    return time.time() - asked < ASKS_SECONDS and os.environ.get("THREADLOADER_TOP") != "0"


def is_private(folder: Path) -> bool:
    """Whether a folder is one of this user's, and nobody else may look into it."""
    try:
        found = folder.lstat()
    except OSError:
        return False
    if not stat.S_ISDIR(found.st_mode):
        return False
    return not hasattr(os, "getuid") or (
        found.st_uid == os.getuid() and not stat.S_IMODE(found.st_mode) & 0o077
    )


def answer(
    name: str,
    stats: Stats,
    progress: Progress,
    setup: tuple[Tuner, bool, bool],
    moment: tuple[int, int, int],
    batches: int,
) -> None:
    """Write what an epoch is in; or nothing, where that fails: it is not the loop's business.

    Args:
        name: Of the loader.
        stats: Of the same.
        progress: Of the epoch.
        setup: As of `Setup.of`.
        moment: As of `Epoch.moment`.
        batches: That were delivered.
    """
    folder = Path(FOLDER)
    if not is_private(folder):
        return
    with suppress(Exception):  # the ``repr`` of an index, no room on the disk
        recent, last = interval_of(*stats.recent(), moment[0]), stats.last
        since = 0.0 if last is None else last.waits_since
        told: dict[str, Any] = {
            "loader": name,
            "time": time.time(),
            "batches": batches,
            "threads": moment[0],
            "planned": moment[1],
            "done": moment[2],
            "samples_per_second": recent.samples_per_second,
            "wait_share": recent.wait_share,
            "waits_seconds": perf_counter() - since if since else 0.0,
            "verdict": str(judged(stats, *setup)) if batches else "",
            "tasks": _tasks(stats, progress),
        }
        path = folder / f"{os.getpid()}-{id(progress)}.json"
        written = path.with_suffix(".new")
        written.write_text(json.dumps(told), encoding="utf-8")
        written.replace(path)


def _tasks(stats: Stats, progress: Progress) -> list[dict[str, Any]]:
    """Return what each thread is in, longest first."""
    # To follow the frames of a thread that runs is safe with the GIL alone: without, CPython 3.13
    # has crashed in it.
    stacks = sys._current_frames() if gil_is_enabled() else {}  # noqa: SLF001  # documented
    try:
        return [
            {
                "thread": counters.number,
                "task": task_of(counters, progress),
                "seconds": perf_counter() - counters.task_began,
                "place": _place(stacks.get(counters.thread)),
            }
            for counters in stats.busy()
        ]
    finally:
        stacks.clear()  # frames of other threads, which would keep what they hold


def _place(frame: Any) -> str:
    """Return where a thread is in the user's code, "data.py:12 in load", and in what that calls."""
    if frame is None:
        return ""
    frames = traceback.extract_stack(frame)
    users = list(dropwhile(is_ours, frames))
    # With a system's Python, packages lie in a folder of the library's.
    theirs = [it for it in users if not it.filename.startswith(_LIBRARY)] or users
    told = [*theirs[-1:], *users[-1:]]
    return " > ".join(
        dict.fromkeys(f"{Path(it.filename).name}:{it.lineno} in {it.name}" for it in told)
    )
