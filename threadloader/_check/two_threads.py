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

    from threadloader._check.loading import LoadedSample, Loading, Twin, WorkerThread

__all__ = ["TwoThreads"]

BLOCKED_SECONDS = 0.25  # after which a thread counts as waiting for a lock
LEAST_SECONDS = 0.02  # the same, where it often waits for one that nobody knows
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
        self._patience = BLOCKED_SECONDS + SLOWER * loading.slowest  # of those that nobody held

    def recorded(
        self, keys: Sequence[Any], *, unused: bool
    ) -> list[tuple[Any, Recording, LoadedSample]]:
        """Load samples one after the other in one thread; note their places and changes.

        Args:
            keys: The indices.
            unused: Whether each is of a dataset of which no sample was loaded yet.
        """
        twin, parts = self._loading.copy(), self._loading.sharing().parts
        found = []
        # Twice: from Python 3.12 on, a function's instructions are not traced in its first call.
        for trace in (LineTracer, Recording):
            for key in keys:
                if unused:
                    twin, other = self._loading.copies(unused=True)
                    parts = Sharing(twin.dataset, other.dataset).parts
                tracer = trace(parts)
                # With no limit: alone, it waits for no other thread, and to record takes long.
                loaded = self._held.start(self._loading.load, twin, key, tracer).result()
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
        self,
        keys: Sequence[Any],
        steps: tuple[int, int | None],
        room: dict[frozenset[int], int],
        *,
        unused: bool,
    ) -> list[Outcome]:
        """Load the first sample in one thread, and the others in the other while it is held.

        Args:
            keys: The indices.
            steps: The number of the place where the first is held, and of that where the other
                thread is held until the first has ended; None for nowhere.
            room: How many of the others can be loaded while these locks are held; is learned.
            unused: Whether of a dataset of which no sample was loaded yet.

        Returns:
            The first alone if it has not come to its place, or locks keep the others out.

        Raises:
            HangError: The threads wait for each other.
        """
        twins = self._loading.copies(unused=unused)
        (step, other_step), (there, ended) = steps, (Event(), Event())
        futures: list[Future[Any]] = []

        def stay_there() -> None:
            there.set()
            ended.wait()

        def meanwhile() -> None:
            locks = self._other.start(self._locked).result()
            others = keys[1:][: room.get(locks)]
            if not others or (locks and other_step is not None):
                return
            loaded = self._loading.ended
            hold = None if other_step is None else Hold(other_step, stay_there)
            futures.append(self._other.start(self._load, twins[1], others, hold))
            futures[0].add_done_callback(lambda _: there.set())
            if not there.wait(self._patience):
                self._blocked(locks, room, self._loading.ended - loaded)
            elif self._locked():
                ended.set()  # it was to be held with a lock, which keeps this thread out

        first = self._held.start(self._load, twins[0], keys[:1], Hold(step, meanwhile))
        try:
            if other_step is not None:
                wait([first], self._patience)  # or it waits for a lock that nobody knows
        finally:
            ended.set()
        found: list[Outcome] = self._loading.result(first)
        for future in futures:  # made by then
            found += self._loading.result(future)
        return found

    def _locked(self) -> frozenset[int]:
        """Return the known locks, by their ids, that are held by other threads than this one."""
        locked = set()
        for lock in self._loading.locks:
            if lock.acquire(False):  # the first argument of all kinds of locks
                lock.release()
            else:
                locked.add(id(lock))
        return frozenset(locked)

    def _blocked(self, locks: frozenset[int], room: dict[frozenset[int], int], count: int) -> None:
        """Note that the other thread waits for a lock, when it has loaded so many samples."""
        if locks:
            room[locks] = count
        else:  # one that is not known
            self._patience = max(self._patience / 2, LEAST_SECONDS)

    def _load(
        self, twin: Twin, keys: Sequence[Any], trace: Callable[..., Any] | None = None
    ) -> list[Outcome]:
        # Traced for nothing: from Python 3.12 on, instructions that come to pass without are not
        # traced the next time, whichever thread runs them.
        trace = LineTracer().user_only if trace is None else trace
        number = int(not isinstance(trace, Hold))
        loaded = [(key, self._loading.load(twin, key, trace, number)) for key in keys]
        return [(key, outcome.difference(self._expected[key])) for key, outcome in loaded]
