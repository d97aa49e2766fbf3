"""Forced interleavings: a thread is held at each place of a sample, while another loads samples.

Each sample must come out as it does alone, and no update of a number may be lost.  Nothing depends
on how fast a thread runs: the other one has ended before the held one goes on, unless it waits for
a lock that the held one has.
"""

from __future__ import annotations

import sys
from concurrent.futures import wait
from typing import TYPE_CHECKING, Any

from threadloader._check.findings import Finding
from threadloader._check.sharing import Sharing
from threadloader._check.tracing import Recording, Tracer, chosen_steps, trace_nothing

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from concurrent.futures import Future
    from types import FrameType

    from threadloader._check.loading import LoadedSample, Loading, Twin, WorkerThread
    from threadloader._check.sharing import SharedObject
    from threadloader._check.tracing import Write


BLOCKED_SECONDS = 0.25  # after which a thread counts as waiting for a lock
LEAST_SECONDS = 0.02  # the same, where it often does
SLOWER = 20  # times the slowest sample: what a thread may take that waits for nobody
_COUNTED = frozenset({"shared-attribute", "class-attribute", "global-variable", "shared-container"})
_LIKELY = frozenset({"shared-handle", "random-state"})  # to be the cause, of several
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
        self._least = LEAST_SECONDS + 2 * loading.slowest

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
        for again in (False, True):
            for key in keys:
                if unused:
                    twin, other = self._loading.copies(unused=True)
                    parts = Sharing(twin.dataset, other.dataset).parts
                recording = Recording(parts if again else ())
                trace = Tracer(recording.reached)
                # With no limit: alone, it waits for no other thread, and to record takes long.
                loaded = self._held.start(self._loading.load, twin, key, trace).result()
                if again:
                    recording.look()
                    found.append((key, recording, loaded))
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

    def at_once(self, keys: Sequence[Any], step: int, *, unused: bool) -> list[Outcome]:
        """Load the first sample in one thread, and the others in the other while it is held.

        Args:
            keys: The indices.
            step: The number of the place where the first is held.
            unused: Whether of a dataset of which no sample was loaded yet.

        Returns:
            The first alone if it has not come to its place.

        Raises:
            HangError: The threads wait for each other.
        """
        twins = self._loading.copies(unused=unused)
        futures: list[Future[Any]] = []

        def reached(number: int, _: FrameType) -> None:
            if number == step:
                futures.append(self._other.start(self._load, twins[1], keys[1:]))
                if not wait(futures, self._patience).done:
                    self._patience = max(self._patience / 2, self._least)

        first = self._held.start(self._load, twins[0], keys[:1], reached)
        found: list[Outcome] = self._loading.result(first)
        for future in futures:  # made by then
            found += self._loading.result(future)
        return found

    def _load(
        self,
        twin: Twin,
        keys: Sequence[Any],
        reached: Callable[[int, FrameType], None] | None = None,
    ) -> list[Outcome]:
        found = []
        for key in keys:
            # Traced for nothing: from Python 3.12 on, instructions that come to pass without are
            # not traced the next time, whichever thread runs them.
            trace = Tracer(reached, libraries=reached is not None)
            outcome = self._loading.load(twin, key, trace, number=int(reached is None))
            found.append((key, outcome.difference(self._expected[key])))
        return found


class Interleaved:
    """A sample that is held at each of its places, while another thread loads others.

    Args:
        threads: Load the samples.
        keys: Their indices, first of the one that is held.
        recordings: Of samples; None to try a dataset of which no sample was loaded yet.

    Attributes:
        tried: Places at which a thread was held.
        left_out: Places that there was no time for.

    Threads:
        all: the one that checks.
    """

    def __init__(
        self,
        threads: TwoThreads,
        keys: Sequence[Any],
        recordings: Mapping[Any, Recording] | None = None,
    ) -> None:
        self.tried = self.left_out = 0
        self._threads, self._keys, self._unused = threads, keys, recordings is None
        if recordings is None:
            found = threads.recorded([*dict.fromkeys(keys)], unused=True)
            recordings = {key: recording for key, recording, _ in found}
        self._held = recordings[keys[0]]
        self._others = [write for key in keys[1:] for write in recordings[key].writes]
        paths = {write.part.path for write in self._others}
        self._both = [write for write in self._held.writes if write.part.path in paths]
        # What all add together to the numbers in what both write, in whatever order.
        self._adds: _Numbers = {}

    def first_wrong(self, is_over: Callable[[], bool]) -> Finding | None:
        """Load the samples at once, until one comes out wrong or an update is lost; return that.

        Args:
            is_over: Returns whether there is no time for another try.

        Raises:
            HangError: The threads wait for each other.
        """
        # The first sample of all may be one like the others.
        tries = bool(self._held.writes or self._others) if self._unused else self._is_right()
        for step in chosen_steps(self._held) if tries else ():
            if is_over():
                self.left_out += 1
                continue
            self.tried += 1
            wrong = self._wrong_at(step)
            if wrong is not None:
                return wrong
        return None

    def _is_right(self) -> bool:
        """Whether the samples come out right, loaded one after the other."""
        added = []
        counted = [write.part for write in self._both if write.part.kind in _COUNTED]
        for back in (False, True):
            before = _numbers(counted)
            if any(wrong for _, wrong in self._threads.in_turn(self._keys, back=back)):
                return False
            added.append({(place, number) for place, number in _added(before).items() if number})
        self._adds = dict(added[0] & added[1])
        return True

    def _wrong_at(self, step: int) -> Finding | None:
        """Load the others while the one is held at a step; return what is wrong."""
        before = _numbers(part for part, _ in self._adds)
        loaded = self._threads.at_once(self._keys, step, unused=self._unused)
        for key, wrong in loaded:
            if wrong:
                text = f"index {key!r} came out wrong ({wrong})"
                return self._finding(step, text, self._cause(step))
        added = _added(before)
        for (part, name), number in self._adds.items():
            if len(loaded) == len(self._keys) and added.get((part, name)) != number:
                cause = next(write for write in self._both if write.part == part)
                return self._finding(step, "an update was lost", cause)
        return None

    def _cause(self, step: int) -> Write | None:
        """Return the likely cause of what goes wrong while the one is held at a step.

        It is best what both write, before the step and meanwhile; else what was written meanwhile,
        or before the step.
        """
        both, own = (
            [write for write in writes if write.step < step][::-1]
            for writes in (self._both, self._held.writes)
        )
        causes = both or self._others or own
        return min(causes, key=lambda write: write.part.kind not in _LIKELY, default=None)

    def _finding(self, step: int, text: str, cause: Write | None) -> Finding:
        key, *others = self._keys
        text += (
            f" when one thread had come this far with index {key!r}, and another loaded index "
            f"{', '.join(map(repr, others))}"
        )
        if cause is None:
            return Finding("mixed-samples", text, self._held.steps[step].line, key)
        text = f"{cause.name} is shared by all workers: {text}"
        return Finding(cause.part.kind, text, cause.line, key, cause.name)


# By parts, and the names or places of the numbers in them.
_Numbers = dict[tuple["SharedObject", Any], float]


def _numbers(parts: Iterable[SharedObject]) -> _Numbers:
    return {(part, name): number for part in {*parts} for name, number in part.numbers().items()}


def _added(before: _Numbers) -> _Numbers:
    """Return what was added to numbers since."""
    after = _numbers(part for part, _ in before)
    return {place: number - before[place] for place, number in after.items() if place in before}
