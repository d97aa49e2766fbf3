"""What an epoch is in, for `threadloader top` in another process: written when that asks for it.

    top makes a folder for its user alone, and an empty file there: FOLDER/PID
    the loop, once a second, finds it -> writes FOLDER/PID-LOADER.json -> top shows it

Nothing listens, and nobody but the user can ask, or read the answer.
"""

from __future__ import annotations

import json
import os
import stat
import time
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Any

from threadloader._epoch.hanging import FOLDER, place_of, task_of
from threadloader._report.interval import interval_of
from threadloader._report.reports import judged

if TYPE_CHECKING:
    from threadloader._tuning.tuner import Tuner
    from threadloader._work.progress import Progress
    from threadloader._work.stats import Stats


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
    """Write what an epoch is in.

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
    recent, last = interval_of(*stats.recent(), moment[0]), stats.last
    since = 0.0 if last is None else last.waits_since
    told: dict[str, Any] = {
        "loader": name,
        "time": time.time(),
        "epoch": stats.epochs - 1,
        "batches": batches,
        "threads": moment[0],
        "planned": moment[1],
        "done": moment[2],
        "samples_per_second": recent.samples_per_second,
        "wait_share": recent.wait_share,
        "waits_seconds": perf_counter() - since if since else 0.0,
        "verdict": str(judged(stats, *setup)) if batches else "",
        "tasks": [
            {
                "thread": counters.number,
                "task": task_of(counters, progress),
                "seconds": perf_counter() - counters.task_began,
                "place": place_of(counters.thread),
            }
            for counters in stats.busy()
        ],
    }
    path = folder / f"{os.getpid()}-{id(stats)}.json"
    written = path.with_suffix(".new")
    try:
        written.write_text(json.dumps(told), encoding="utf-8")
        written.replace(path)
    except OSError:  # no room, say: whoever asks sees that no answer comes
        pass
