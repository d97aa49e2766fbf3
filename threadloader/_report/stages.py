"""The stages of loading, told as they begin and end: to a trace, to a profiler, or to nobody.

The code that loads asks for the tracer, once for each stage; it is None if nobody listens::

    tracer = stages.tracer
    if tracer is not None:
        tracer.begin("read", epoch, batch)
    try:
        read()
    finally:
        if tracer is not None:
            tracer.end("read")

So a listener that comes or goes in the middle of a stage is told of both its ends, or of none.
"""

from __future__ import annotations

from threading import local
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Callable


# An object of the epoch's loader alone, and the epoch's number in the process.
EpochKey: TypeAlias = tuple[object, int]


class Rows(NamedTuple):
    """What a stage works on."""

    epoch: EpochKey
    batch: int  # its number in the epoch; -1 for no certain one
    first: int  # row
    after: int  # the row after the last; ``first`` for the whole batch


class Counts(NamedTuple):
    """What there is at a moment, when the consumer takes a batch."""

    running: int  # threads that may run samples; 0 for the calling thread
    planned: int  # batches that are left in the window
    done: int  # of them, those that could be delivered
    free: int  # slots
    filling: int  # slots
    leased: int  # slots


# Is told of the stages of all loaders, in the thread that they run in, and also from a finalizer in
# the middle of another call: notes that a stage begins, and returns what is called as it ends, in
# the same thread.
Listener: TypeAlias = "Callable[[str, Rows | None, Counts | None], Callable[[], object]]"

# A stage that is open: its name, its rows, whether it is a part, and what tells of its end.
_Open: TypeAlias = "tuple[str, Rows | None, bool, list[Callable[[], object]]]"


class Tracer:
    """Tells listeners of stages, which nest in each thread.

    Threads:
        all: shared.
    """

    __slots__ = ("_here", "_listeners")

    def __init__(self, listeners: tuple[Listener, ...]) -> None:
        self._listeners = listeners
        self._here = local()  # has the stages that are open in a thread, outermost first

    def begin(
        self,
        stage: str,
        epoch: EpochKey | None = None,
        batch: int = -1,
        first: int = 0,
        after: int = 0,
        counts: Counts | None = None,
    ) -> None:
        """Tell that a stage begins.

        Args:
            stage: Its name.
            epoch: Of what it works on.  None for a part of the stage that is open, on the same
                rows: it ends where the next part begins, or with that stage.
            batch: See `Rows`.
            first: See `Rows`.
            after: See `Rows`.
            counts: What there is now, if that is known.
        """
        opened: list[_Open] = vars(self._here).setdefault("stages", [])
        is_part = epoch is None
        if is_part and opened and opened[-1][2]:
            self.end(opened[-1][0])
        rows = None if epoch is None else Rows(epoch, batch, first, after)
        if is_part and opened:
            rows = opened[-1][1]
        ends: list[Callable[[], object]] = []
        opened.append((stage, rows, is_part, ends))  # first, since Ctrl-C may come up in between
        for listener in self._listeners:
            ends.append(listener(stage, rows, counts))  # noqa: PERF401  # see above

    def end(self, stage: str) -> None:
        """Tell that a stage ends, with all in it that is open: parts, and what an error has left.

        It is none if Ctrl-C came up as the stage was about to begin.
        """
        opened: list[_Open] = vars(self._here).setdefault("stages", [])
        while any(name == stage for name, *_ in opened):
            name, _, _, ends = opened.pop()
            for end in reversed(ends):
                end()
            if name == stage:
                return


# Who is told of the stages of all loaders; None for nobody.  Of the module, which all threads can
# read on a free-threaded build without counting references to it.  Replaced whole.
tracer: Tracer | None = None
_listeners: list[Listener] = []  # changed by single calls, which are atomic on both builds


def add_listener(listener: Listener) -> None:
    """Tell a listener of the stages that begin from now on."""
    _listeners.append(listener)
    _renew()


def remove_listener(listener: Listener) -> None:
    """Tell a listener of no further stages; of those that have begun it is told the end."""
    _listeners.remove(listener)
    _renew()


def _renew() -> None:
    """Make the tracer anew; once more if the listeners have changed meanwhile.

    Without a lock, which a forked child might find held.
    """
    global tracer  # noqa: PLW0603  # of the process, as profilers are
    told: tuple[Listener, ...] | None = None
    while told != (listeners := tuple(_listeners)):
        tracer = Tracer(listeners) if listeners else None
        told = listeners
