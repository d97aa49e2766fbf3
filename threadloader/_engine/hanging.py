"""What a batch that does not come waits for: which worker, which sample, and where it is.

With the GIL also its stack, at that moment.  Without one nobody may walk the stack of a thread that
runs.
"""

from __future__ import annotations

import math
import sys
from itertools import dropwhile
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING

from threadloader._order.tickets import PlannedBatch, Ticket
from threadloader._threads.tuner import gil_is_enabled
from threadloader.errors import warn_user

if TYPE_CHECKING:
    from collections.abc import Callable
    from traceback import FrameSummary

    from threadloader._engine.open_batch import FailedBatch, OpenBatch
    from threadloader._engine.progress import Progress
    from threadloader._report.stats import Counters, Stats


WARNED_SECONDS = 30.0  # without a batch, until the consumer is told; far more than batches take
MOST_STACKS = 3
MOST_FRAMES = 20  # of a stack, the innermost
_OURS = str(Path(__file__).parents[1])


class Patience:
    """How long the consumer of an epoch waits for a batch, until it is told what for.

    Args:
        timeout: Seconds until an error is raised; 0 for none.
        stats: Of the loader; they know what each thread is in.
        progress: Of the epoch.
        find_lost: Cancels the epoch if its threads are gone; None where there are none.

    Threads:
        all: consumer.
    """

    def __init__(
        self,
        timeout: float,
        stats: Stats,
        progress: Progress,
        find_lost: Callable[[], None] | None,
    ) -> None:
        self._timeout = timeout
        self._find_lost = find_lost
        self._stats = stats
        self._progress = progress
        self._began = 0.0  # the wait, on the clock
        # Until it is warned, once; infinite where the error comes first.
        self._warned = math.inf if 0 < timeout <= WARNED_SECONDS else WARNED_SECONDS

    def begin(self) -> float | None:
        """Begin to wait for a batch; return the seconds of the timeout, None for none."""
        self._began = perf_counter()
        return self._timeout or None

    def seconds(self, due: float) -> float | None:
        """Return how long to wait until something is to be done; None for ever.

        Args:
            due: When the caller has to do something, on the clock.
        """
        until = min(due, self._began + min(self._warned, self._timeout or math.inf))
        return None if until == math.inf else max(0.0, until - perf_counter())

    def check(self, head: OpenBatch | FailedBatch, *, begun: bool) -> None:
        """Warn, or raise, if the batch has taken too long.

        Args:
            head: What is waited for.
            begun: Whether the workers have begun; if not, that took too long.

        Raises:
            RuntimeError: It takes longer than the timeout.
        """
        waited = perf_counter() - self._began
        if not begun or (self._timeout and waited >= self._timeout):
            msg = f"DataLoader timed out after {self._timeout} seconds"
            raise RuntimeError(msg + _threads_in(self._stats, self._progress, head))
        if waited < self._warned:
            return
        self._warned = math.inf
        if self._find_lost is not None:
            self._find_lost()
        if not self._progress.cancelled:
            what = _threads_in(self._stats, self._progress, head)
            took = f"no batch has come for {WARNED_SECONDS:.0f} seconds"
            warn_user(f"{took}; the loop waits on{what}")


def _threads_in(stats: Stats, progress: Progress, head: OpenBatch | FailedBatch) -> str:
    """Describe the threads that the next batch waits for: ": worker 1 has been in ..."; or nothing.

    Args:
        stats: Of the loader; they know what each thread is in.
        progress: Of the epoch.
        head: The batch that is waited for.
    """
    busy = stats.busy()
    plan = getattr(head, "plan", None)
    due = [counters for counters in busy if plan is not None and _plan_of(counters) is plan]
    # Documented, in spite of its name.
    stacks = sys._current_frames() if gil_is_enabled() else {}  # noqa: SLF001
    try:
        parts = [
            _described(counters, progress) + _stack(stacks.get(counters.thread))
            for counters in (due or busy)[:MOST_STACKS]
        ]
    finally:
        stacks.clear()  # frames of other threads, which would keep what they hold
    if not parts:
        return ""
    begins = any(type(counters.task) is str for counters in busy)
    where = "" if due or begins else " (no worker is in the batch that is due)"
    return f"{where}: " + "\n".join(parts)


def _plan_of(counters: Counters) -> object:
    """Return the batch that a thread is in."""
    task = counters.task
    if type(task) is Ticket:
        return task.batch
    return task[0] if type(task) is tuple else task


def _described(counters: Counters, progress: Progress) -> str:
    """Return who is in what, and for how long."""
    seconds = perf_counter() - counters.task_began
    return f"worker {counters.number} has been in {_task(counters, progress)} for {seconds:.1f} s"


def _task(counters: Counters, progress: Progress) -> str:
    """Return what a thread is in, in words."""
    task = counters.task
    if type(task) is Ticket:
        return _sample(task, progress.fetched_by(counters.thread))
    if type(task) is PlannedBatch:
        return f"the collate function of batch {task.sequence}"
    if type(task) is tuple:
        return f"the iterable dataset, reading batch {task[0].sequence}"
    return "its task" if task is None else str(task)  # it has just ended


def _sample(ticket: Ticket, fetched: int | None) -> str:
    """Return which sample of a ticket is fetched, in words.

    Args:
        ticket: The ticket.
        fetched: Samples of it that are there; None if they are not fetched one by one.
    """
    plan, rows = ticket.batch, ticket.stop - ticket.start
    if fetched is not None and fetched < rows:
        return f"{plan.label} {plan.index_of(ticket.start + fetched)!r} of batch {plan.sequence}"
    if rows == 1:
        return f"{plan.label} {plan.index_of(ticket.start)!r} of batch {plan.sequence}"
    return f"batch {plan.sequence}, rows {ticket.start} to {ticket.stop - 1}"


def _stack(frame: object) -> str:
    """Return a thread's stack, from the user's first frame on; nothing if there is none."""
    import traceback  # noqa: PLC0415  # nearly never needed

    if frame is None:
        return ""
    frames = traceback.extract_stack(frame)  # type: ignore[arg-type]  # a frame, or None
    users = list(dropwhile(_is_ours, frames)) or frames  # all of it may be ours: a row is written
    return "\n" + "".join(traceback.format_list(users[-MOST_FRAMES:])).rstrip("\n")


def _is_ours(frame: FrameSummary) -> bool:
    """Whether a frame is one of the package's, or of the thread's beginning."""
    return frame.filename.startswith(_OURS) or Path(frame.filename).stem == "threading"
