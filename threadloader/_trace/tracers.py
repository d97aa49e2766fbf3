"""Who is told when the stages of a loader's work begin and end: a trace, a profiler, or nobody.

An epoch gets parts that tell as its tracing begins, and loses them as it ends.  So a stage of which
nobody is told costs nothing, and what is told may change in the middle of an epoch.
"""

from __future__ import annotations

from threading import Lock
from typing import Protocol, TypeAlias, TypeVar

from threadloader._lifetime.dropping import AtomicWeakSet
from threadloader._lifetime.exit_and_fork import in_forked_child

__all__ = [
    "BatchRows",
    "Traceable",
    "Tracer",
    "Tracers",
    "trace_all",
    "untrace_all",
]

# Rows of a batch: the number of its epoch, its own in the epoch, the first row, and the row after
# the last.
BatchRows: TypeAlias = "tuple[int, int, int, int]"


class Tracer(Protocol):
    """Is told of stages, in the thread that they run in.

    Stages nest: each `begin` has its `end`, in the same thread, also after an error.  Only Ctrl-C
    may come between, in the consumer's thread; then there is a `broken_off`.

    Threads:
        all: shared.
    """

    def begin(self, stage: str, rows: BatchRows | None = None) -> None:
        """Note that a stage begins.

        Args:
            stage: Its name.
            rows: What it works on; None for that of the stage that it is a part of.
        """

    def end(self) -> None:
        """Note that the stage that began last in this thread ends."""

    def broken_off(self) -> None:
        """Note that Ctrl-C has ended all stages of this thread, of whose ends some are not told."""

    def taken(self, epoch: int, batch: int, running: int, planned: int, done: int) -> None:
        """Note that the consumer takes a batch out of the window.

        Args:
            epoch: Its epoch's number.
            batch: Its own in the epoch; of a group that of the first.
            running: Threads that may run samples; 0 for the calling thread.
            planned: Batches that are left in the window.
            done: Those of them that could be delivered.
        """


class Traceable(Protocol):
    """Something whose stages may be traced: an epoch."""

    def trace(self, tracer: Tracer | None) -> None:
        """Tell a tracer of stages from now on; None tells nobody."""


E = TypeVar("E", bound=Traceable)


class _Several:
    """Several tracers as one."""

    __slots__ = ("_tracers",)

    def __init__(self, tracers: tuple[Tracer, ...]) -> None:
        self._tracers = tracers

    def begin(self, stage: str, rows: BatchRows | None = None) -> None:
        """See `Tracer`."""
        for tracer in self._tracers:
            tracer.begin(stage, rows)

    def end(self) -> None:
        """See `Tracer`."""
        for tracer in reversed(self._tracers):
            tracer.end()

    def broken_off(self) -> None:
        """See `Tracer`."""
        for tracer in self._tracers:
            tracer.broken_off()

    def taken(self, epoch: int, batch: int, running: int, planned: int, done: int) -> None:
        """See `Tracer`."""
        for tracer in self._tracers:
            tracer.taken(epoch, batch, running, planned, done)


# Every loader's, and the tracers that are told of all loaders.
_loaders: AtomicWeakSet[Tracers] = AtomicWeakSet()
_of_all: tuple[Tracer, ...] = ()
# Held while tracers come or go, which only their users' own calls do, and no finalizer.
_changing = Lock()


@in_forked_child
def _renew() -> None:
    """Let a forked child, where nobody holds the lock, trace its own loaders."""
    global _changing, _loaders  # of the process, and this is a new one
    _changing, _loaders = Lock(), AtomicWeakSet()


class Tracers:
    """The tracers of one loader.

    Threads:
        entered: planner.
        add, remove: shared.
    """

    def __init__(self) -> None:
        self._epochs: AtomicWeakSet[Traceable] = AtomicWeakSet()
        self._own: tuple[Tracer, ...] = ()  # of this loader alone; changed with `_changing` held
        self._tracer: Tracer | None = None
        # Without a lock, since a finalizer may make a loader inside `_changing`: it is in the set
        # before it looks, and looks again after it has written.
        _loaders.add(self)
        while True:
            of_all = _of_all
            self._tracer = _as_one(of_all)
            if of_all is _of_all:
                break

    def entered(self, epoch: E) -> E:
        """Return an epoch whose stages are traced by those who trace the loader, now or later."""
        self._epochs.add(epoch)
        told: Tracer | None = None
        while told is not (tracer := self._tracer):  # as above
            epoch.trace(tracer)
            told = tracer
        return epoch

    def add(self, tracer: Tracer) -> None:
        """Tell a tracer of this loader's stages, from now on."""
        with _changing:
            self._own = (*self._own, tracer)
            self._tell()

    def remove(self, tracer: Tracer) -> None:
        """Tell a tracer of no further stages; of those that have begun it is told the end."""
        with _changing:
            self._own = _without(self._own, tracer)
            self._tell()

    def _tell(self) -> None:
        """Let the epochs see a change.  Call with ``_changing`` held."""
        self._tracer = _as_one((*_of_all, *self._own))
        for epoch in self._epochs.all():
            epoch.trace(self._tracer)


def trace_all(tracer: Tracer) -> None:
    """Tell a tracer of the stages of all loaders of this process, from now on."""
    with _changing:
        _set_of_all((*_of_all, tracer))


def untrace_all(tracer: Tracer) -> None:
    """Take back `trace_all`."""
    with _changing:
        _set_of_all(_without(_of_all, tracer))


def _set_of_all(tracers: tuple[Tracer, ...]) -> None:
    """Set who is told of all loaders.  Call with ``_changing`` held."""
    global _of_all  # noqa: PLW0603  # of the process, as profilers are
    _of_all = tracers
    for loader in _loaders.all():
        loader._tell()  # noqa: SLF001  # of this module


def _without(tracers: tuple[Tracer, ...], left_out: Tracer) -> tuple[Tracer, ...]:
    return tuple(tracer for tracer in tracers if tracer is not left_out)


def _as_one(tracers: tuple[Tracer, ...]) -> Tracer | None:
    if len(tracers) > 1:
        return _Several(tracers)
    return tracers[0] if tracers else None
