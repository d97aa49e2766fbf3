"""Two threads that load samples of one dataset: one traced, one held, or both held at once.

Nothing depends on how fast a thread runs: the other one has ended before the held one goes on,
unless it waits for a lock that the held one has.
"""

from __future__ import annotations

import sys
from concurrent.futures import wait
from threading import Event
from typing import TYPE_CHECKING, Any

from threadloader._check.sharing import Sharing
from threadloader._check.tracing import Hold, LineTracer, Recording, trace_nothing

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from concurrent.futures import Future

    from threadloader._check.loading import LoadedSample, Loading, WorkerThread

__all__ = ["TwoThreads"]

BLOCKED_SECONDS = 1.0  # after which a thread counts as waiting for a lock
MOST_BLOCKED = 3  # times that this happens before it is
LESS = 50  # times shorter
SLOWER = 20  # times the slowest sample: what a thread may take that waits for nobody
Outcome = tuple[Any, str | None]  # an index, and what was wrong


class TwoThreads:
    """Loads samples of one dataset in two threads.

    Args:
        held: The one that is traced or held.
        other: The other one.
        loading: Loads the samples.
        expected: The samples as one thread loads them.

    Threads:
        all: the one that checks.
    """

    def __init__(
        self,
        held: WorkerThread,
        other: WorkerThread,
        loading: Loading,
        expected: Mapping[Any, LoadedSample],
    ) -> None:
        self._held, self._other, self._loading, self._expected = held, other, loading, expected
        # Always traced: from Python 3.12 on, functions lose what was put into their instructions
        # while nobody traces, and get it back only in the middle of a call.
        held.start(sys.settrace, trace_nothing).result()
        self._blocked = 0
        self._patience = BLOCKED_SECONDS + SLOWER * loading.slowest  # of those that nobody held

    def recorded(
        self, keys: Sequence[Any], *, unused: bool
    ) -> list[tuple[Any, Recording, LoadedSample]]:
        """Load samples one after the other in one thread; note their places and changes.

        Args:
            keys: The indices.
            unused: Whether each is of a dataset of which no sample was loaded yet.
        """
        twins = self._loading.copies()
        parts = Sharing(twins).parts
        found = []
        # Twice: from Python 3.12 on, a function's instructions are not traced in its first call.
        for trace in (LineTracer, Recording):
            for key in keys:
                if unused:
                    twins = self._loading.copies(unused=True)
                    parts = Sharing(twins).parts
                tracer = trace(parts)
                # With no limit: alone, it waits for no other thread, and to record takes long.
                loaded = self._held.start(self._loading.load, twins[0], key, tracer).result()
                if isinstance(tracer, Recording):
                    tracer.look()
                    found.append((key, tracer, loaded))
        return found

    def in_turn(self, keys: Sequence[Any], *, back: bool = False) -> list[Outcome]:
        """Load the first sample in one thread and the others in the other, one after the other.

        Args:
            keys: The indices.
            back: Whether the others come first.
        """
        found = []
        parts = [(self._held, keys[:1]), (self._other, keys[1:])]
        for thread, some in reversed(parts) if back else parts:
            found += self._loading.result(thread.start(self._load, self._loading.copy(), some))
        return found

    def at_once(
        self, keys: Sequence[Any], step: int, other_step: int | None, *, unused: bool
    ) -> list[Outcome]:
        """Load the first sample in one thread, and the others in the other while it is held.

        Args:
            keys: The indices.
            step: The number of the place where the first is held.
            other_step: Where the other thread is held until the first has ended; None for nowhere.
            unused: Whether of a dataset of which no sample was loaded yet.

        Returns:
            The first alone if it has not come to its place.

        Raises:
            HangError: The threads wait for each other.
        """
        twins = self._loading.copies(unused=unused)
        there, ended = Event(), Event()
        futures: list[Future[Any]] = []

        def stay_there() -> None:
            there.set()
            ended.wait()

        def meanwhile() -> None:
            hold = None if other_step is None else Hold(other_step, stay_there)
            futures.append(self._other.start(self._load, twins[1], keys[1:], hold))
            futures[0].add_done_callback(lambda _: there.set())
            # Else it waits for a lock.
            often = self._blocked >= MOST_BLOCKED
            self._blocked += not there.wait(self._patience / LESS if often else self._patience)

        first = self._held.start(self._load, twins[0], keys[:1], Hold(step, meanwhile))
        try:
            if other_step is not None:
                wait([first], self._patience)  # or it waits for a lock of the other's
        finally:
            ended.set()
        found: list[Outcome] = self._loading.result(first)
        for future in futures:  # made by then
            found += self._loading.result(future)
        return found

    def _load(
        self, twin: Any, keys: Sequence[Any], trace: Callable[..., Any] | None = None
    ) -> list[Outcome]:
        # Traced for nothing: from Python 3.12 on, instructions that come to pass without are not
        # traced the next time, whichever thread runs them.
        trace = LineTracer().user_only if trace is None else trace
        number = int(not isinstance(trace, Hold))
        loaded = [(key, self._loading.load(twin, key, trace, number)) for key in keys]
        return [(key, outcome.difference(self._expected[key])) for key, outcome in loaded]
