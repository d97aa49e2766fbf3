"""Forced interleavings: a thread is held at each place of a sample, while another loads samples.

What comes of it must be what comes of the two threads one after the other, in either order: the
samples, and what is shared afterwards.  Nothing here depends on how fast a thread runs: the other
one has ended before the first goes on, unless it waits for a lock that the first one holds.
"""

from __future__ import annotations

import sys
from concurrent.futures import TimeoutError as NotYetError
from dataclasses import dataclass, field
from threading import Event
from time import perf_counter
from typing import TYPE_CHECKING, Any, NamedTuple

from threadloader._check.loading import WorkerThread
from threadloader._check.tracing import (
    Hold,
    LineTracer,
    Recording,
    chosen_steps,
    steps_beside,
    trace_nothing,
)

if TYPE_CHECKING:
    from collections.abc import Sequence
    from concurrent.futures import Future

    from threadloader._check.findings import Line
    from threadloader._check.limit import Limit
    from threadloader._check.loading import LoadedSample, Loading
    from threadloader._check.sharing import Sharing, States
    from threadloader._check.states import SharedObject
    from threadloader._check.tracing import Write

__all__ = ["Interleavings", "WrongSample"]

BLOCKED_SECONDS = 1.0  # after which a thread counts as waiting for a lock that is not known
SHORT_SECONDS = 0.02  # the same, once that has happened often
MOST_BLOCKED = 3  # and how often that is
MOST_MIXTURES = 6  # places of one pair that show that it is wrong


class WrongSample(NamedTuple):
    """A place at which a sample came out wrong, since another thread loaded samples."""

    key: Any  # of the sample that was held
    others: tuple[Any, ...]  # those that the other thread loaded meanwhile
    text: str  # what is wrong
    line: Line | None  # where the thread was held, or what it had written last
    part: SharedObject | None  # what both share; None if that is not known
    name: str  # of that


@dataclass(slots=True)
class _Serial:
    """What comes of two threads one after the other."""

    outcomes: dict[Any, list[LoadedSample]] = field(default_factory=dict)
    before: dict[int, Any] = field(default_factory=dict)
    numbers: list[dict[int, Any]] = field(default_factory=list)  # of the parts; one an order

    def wrong_sample(self, key: Any, outcome: LoadedSample) -> str | None:
        """Return what differs from all outcomes in this order or the other; None for nothing."""
        texts = [outcome.difference(expected) for expected in self.outcomes[key]]
        return None if None in texts else texts[0]


class Interleavings:
    """Loads samples of one dataset with a thread that is held.

    Args:
        loading: Loads the samples.
        sharing: What workers share.
        start: The state of that before each try.
        candidates: The parts that samples change.
        limit: Of the time.

    Threads:
        all: the one that checks.
    """

    def __init__(
        self,
        loading: Loading,
        sharing: Sharing,
        start: States,
        candidates: Sequence[SharedObject],
        limit: Limit,
    ) -> None:
        self.tried = 0
        # Of each two locks that a sample takes, one while it holds the other: the line, the sample.
        self.orders: dict[tuple[int, int], tuple[Line | None, Any]] = {}
        self._loading, self._sharing, self._start = loading, sharing, start
        self._candidates = list(candidates)
        self._limit = limit
        self.left_out = 0  # places that there was no time for
        self._held, self._other = (WorkerThread(f"tlcheck-worker-{n}") for n in range(2))
        # Always traced: from Python 3.12 on, functions lose what was put into their instructions
        # while nobody traces, and get it back only in the middle of a call.
        self._held.start(sys.settrace, trace_nothing).result()
        self._blocked = 0
        self._patience = BLOCKED_SECONDS

    def close(self) -> None:
        """End the threads."""
        for thread in (self._held, self._other):
            thread.stop()
            thread.join()

    def add_candidates(self, parts: Sequence[SharedObject]) -> None:
        """Let more parts be watched and put back."""
        known = {id(part) for part in self._candidates}
        self._candidates += {id(part): part for part in parts if id(part) not in known}.values()

    def record(self, key: Any, watched: Sequence[SharedObject] | None = None) -> Recording:
        """Load a sample once, from the start; return its places and what it changes."""
        watched = self._candidates if watched is None else watched
        # From Python 3.12 on, a function's instructions are not traced in its first call.
        self._recorded(key, ())
        return self._recorded(key, watched)

    def _recorded(self, key: Any, watched: Sequence[SharedObject]) -> Recording:
        self._restart()
        recording = Recording(self._sharing, watched)
        twin = self._loading.copy()
        # With no limit: alone, it waits for no other thread, and to record takes long.
        self._held.start(self._loading.load, twin, key, recording).result()
        recording.look()
        for locks, line in recording.orders().items():
            self.orders.setdefault(locks, (line, key))
        return recording

    def pair(self, key: Any, others: tuple[Any, ...]) -> list[WrongSample]:
        """Hold a sample at each of its places while others are loaded.

        Args:
            key: Of the sample that is held.
            others: Of the samples that the other thread loads.

        Raises:
            HangError: The threads wait for each other.
        """
        recording = self.record(key)
        recorded = [self.record(other) for other in others]
        taken = frozenset[int]().union(*(each.locks for each in recorded))
        writes = [*recording.writes, *(write for each in recorded for write in each.writes)]
        serial = self._serial(key, others, self._unlocked(writes))
        if serial is None:
            return []
        mixtures: list[WrongSample] = []
        for step in chosen_steps(recording, taken):
            if self._limit.is_over():
                self.left_out += 1
                continue
            wrong = self._try(step, key, others, serial)
            if wrong is None:
                continue
            mixtures.append(self._explained(wrong, step, key, others, serial, writes, recording))
            if len(mixtures) >= MOST_MIXTURES:
                break
        return mixtures or self._both_held(key, others, serial, recording, recorded)

    def _both_held(
        self,
        key: Any,
        others: tuple[Any, ...],
        serial: _Serial,
        recording: Recording,
        recorded: Sequence[Recording],
    ) -> list[WrongSample]:
        """Hold both threads, each beside its changes of what the other changes, too."""
        for other, its in zip(others[:1], recorded, strict=False):
            both = {id(write.part) for write in recording.writes}
            both &= {id(write.part) for write in its.writes}
            for step, write in steps_beside(recording, both, its.locks):
                for other_step, _ in steps_beside(its, both, recording.locks):
                    if self._limit.is_over():
                        self.left_out += 1
                        continue
                    text = self._try_both(step, other_step, key, other, serial)
                    if text is not None:
                        return [
                            WrongSample(key, (other,), text, write.line, write.part, write.name)
                        ]
        return []

    def _unlocked(self, writes: Sequence[Write]) -> list[SharedObject]:
        """Return the parts whose numbers count: those written without a lock in common."""
        locks: dict[int, frozenset[int]] = {}
        for write in writes:
            locks[id(write.part)] = locks.get(id(write.part), write.held) & write.held
        return [
            part
            for part in self._candidates
            if part.kind in _COMPARED and part.can_be_put_back and not locks.get(id(part))
        ]

    def _serial(
        self, key: Any, others: tuple[Any, ...], parts: list[SharedObject]
    ) -> _Serial | None:
        """Load in both orders; return None if samples differ without any interleaving."""
        serial = _Serial()
        begin = perf_counter()
        self._restart()
        serial.before = {id(part): part.numbers() for part in parts}
        for first, second in (((key,), others), ((key,), others), (others, (key,))):
            self._restart()
            twins = self._loading.copy(), self._loading.copy()
            done = self._limit.result(self._held.start(self._load_all, twins[0], first))
            done += self._limit.result(self._other.start(self._load_all, twins[1], second))
            for each, outcome in done:
                serial.outcomes.setdefault(each, []).append(outcome)
            serial.numbers.append({id(part): part.numbers() for part in parts})
        self._patience = BLOCKED_SECONDS + 5 * (perf_counter() - begin)
        for outcomes in serial.outcomes.values():
            if outcomes[0].difference(outcomes[1]) is not None:
                return None
        one, again, _ = serial.numbers
        unstable = {part for part in one if one[part] != again[part]}
        for numbers in serial.numbers:
            for part in unstable:
                del numbers[part]
        return serial

    def _try(
        self,
        step: int,
        key: Any,
        others: tuple[Any, ...],
        serial: _Serial,
        undo: SharedObject | None = None,
    ) -> tuple[str, SharedObject | None, list[SharedObject]] | None:
        """Hold the sample at one place; return what is wrong, and what the other thread changed.

        Args:
            step: The number of the place.
            key: Of the sample that is held.
            others: Of the samples that the other thread loads.
            serial: What may come of it.
            undo: A part that is put back to what it was when the thread was held.
        """
        self._begin_try()
        twins = self._loading.copy(), self._loading.copy()
        futures: list[Future[Any]] = []
        changed: list[SharedObject] = []

        def meanwhile() -> None:
            states = {id(part): part.state() for part in self._candidates}
            futures.append(self._other.start(self._load_all, twins[1], others))
            self._wait_for(futures[0])
            changed.extend(self._sharing.changed(states, of=self._candidates))
            if undo is not None:
                self._sharing.put_back(states, [undo])

        held = self._held.start(self._loading.load, twins[0], key, Hold(step, meanwhile))
        outcome = self._limit.result(held)
        done = self._limit.result(futures[0]) if futures else []
        for each, found in [(key, outcome), *done]:
            text = serial.wrong_sample(each, found)
            if text is not None:
                return f"index {each!r} came out wrong ({text})", None, changed
        if futures and undo is None:
            return self._lost_update(serial, changed)
        return None

    def _try_both(
        self, step: int, other_step: int, key: Any, other: Any, serial: _Serial
    ) -> str | None:
        """Hold one thread, then the other until the first has ended; return what is wrong."""
        self._begin_try()
        twins = self._loading.copy(), self._loading.copy()
        there, ended = Event(), Event()
        futures: list[Future[Any]] = []

        def let_first_go_on() -> None:
            there.set()
            ended.wait()

        def meanwhile() -> None:
            hold = Hold(other_step, let_first_go_on)
            futures.append(self._other.start(self._loading.load, twins[1], other, hold, 1))
            futures[0].add_done_callback(lambda _: there.set())
            there.wait(self._patience)

        first = self._held.start(self._loading.load, twins[0], key, Hold(step, meanwhile))
        try:
            self._wait_for(first)  # or it waits for a lock of the other's
        finally:
            ended.set()
        done = [(key, self._limit.result(first))]
        done += [(other, self._limit.result(each)) for each in futures]
        for each, found in done:
            text = serial.wrong_sample(each, found)
            if text is not None:
                return f"index {each!r} came out wrong ({text})"
        return None

    def _lost_update(
        self, serial: _Serial, changed: list[SharedObject]
    ) -> tuple[str, SharedObject | None, list[SharedObject]] | None:
        """Return the part that is not what it is after the two threads one after the other.

        Only numbers count that were there before, and are there in any order.
        """
        for part in self._candidates:
            expected = [numbers[id(part)] for numbers in serial.numbers if id(part) in numbers]
            if not expected:
                continue
            found = part.numbers()
            names = set(found).intersection(serial.before[id(part)], *expected)
            if all(any(found[name] != each[name] for name in names) for each in expected):
                return "an update was lost", part, changed
        return None

    def _explained(
        self,
        wrong: tuple[str, SharedObject | None, list[SharedObject]],
        step: int,
        key: Any,
        others: tuple[Any, ...],
        serial: _Serial,
        writes: Sequence[Write],
        recording: Recording,
    ) -> WrongSample:
        """Return what is wrong with its cause: the part without whose change it comes out right."""
        text, part, changed = wrong
        if part is None:
            causes = (
                each
                for each in sorted(changed, key=lambda each: each.kind not in _LIKELY)
                if each.can_be_put_back and self._try(step, key, others, serial, undo=each) is None
            )
            part = next(causes, None)
        if part is None and changed:
            part = changed[0]
        before = [write for write in recording.writes if write.step < step]
        if part is None and before:
            part = before[-1].part  # the other thread met what was half done
        after = writes[len(recording.writes) :]  # of the other thread
        its = [write for write in before if write.part is part][-1:]
        its += [write for write in (*after, *recording.writes) if write.part is part]
        if not its:
            path = "" if part is None else part.path
            return WrongSample(key, others, text, recording.steps[step].line, part, path)
        line, name = its[0].line, its[0].name
        return WrongSample(key, others, text, line, part, name)

    def _load_all(self, twin: Any, keys: Sequence[Any]) -> list[tuple[Any, LoadedSample]]:
        # Traced for nothing: from Python 3.12 on, instructions that come to pass without are not
        # traced the next time, whichever thread runs them.
        return [
            (key, self._loading.load(twin, key, LineTracer().user_only, number=1)) for key in keys
        ]

    def _begin_try(self) -> None:
        self.tried += 1
        self._limit.tell("interleavings", self.tried)
        self._restart()

    def _restart(self) -> None:
        self._sharing.put_back(self._start, self._candidates)

    def _wait_for(self, future: Future[Any]) -> None:
        """Wait until the other thread is done, or waits for a lock."""
        often = self._blocked >= MOST_BLOCKED
        try:
            future.exception(SHORT_SECONDS if often else self._patience)
        except NotYetError:
            self._blocked += 1


_COMPARED = frozenset(
    {"shared-attribute", "class-attribute", "global-variable", "shared-container"}
)
_LIKELY = frozenset({"shared-handle", "random-state"})
