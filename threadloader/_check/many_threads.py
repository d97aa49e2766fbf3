"""Samples loaded by many threads at once, which change over as often as the interpreter can.

Each sample must come out as it does alone.  With a GIL a thread is switched away where functions
are called, loops jump back and calls wait; without one, anywhere.
"""

from __future__ import annotations

import sys
from contextlib import contextmanager
from threading import Barrier
from time import perf_counter
from typing import TYPE_CHECKING, Any, NamedTuple

from threadloader._check.findings import Finding
from threadloader._check.loading import IN_TURN, REPLICAS, WorkerThread
from threadloader._check.sharing import process_parts

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from threadloader._check.loading import LoadedSample, Loading
    from threadloader._check.serial import Write
    from threadloader._work.copies import Own


THREADS = 8
ROUNDS = 10  # at the least
SECONDS = 1.0  # as many more rounds as fit into it
SWITCH_SECONDS = 1e-6  # asked for; the system takes some 50 us
_LIKELY = frozenset({"shared-handle", "random-state"})  # to be the cause, of several


class Wrong(NamedTuple):
    """A sample that came out wrong, or that saw what another had changed of the process."""

    key: Any
    outcome: LoadedSample
    difference: str | None
    process: str  # what was changed; empty for nothing


class ManyThreads:
    """Threads that load samples of one dataset at once.

    Args:
        loading: Loads the samples.
        expected: The samples as one thread loads them.

    Attributes:
        left_out: Of the least number of rounds: those that there was no time for.

    Threads:
        all: the one that checks.
    """

    def __init__(self, loading: Loading, expected: Mapping[Any, LoadedSample]) -> None:
        self.left_out = 0
        self._loading, self._expected = loading, expected

    def first_wrong(self, keys: Sequence[Any], writes: Sequence[Write]) -> Finding | None:
        """Load samples at once, round by round, until one comes out wrong; return that.

        Args:
            keys: The indices of samples that come out the same again.
            writes: What samples change.

        Raises:
            HangError: Threads wait for each other.
        """
        changing = [key for key in dict.fromkeys(write.key for write in writes) if key in keys]
        often = (changing * len(keys))[: len(keys)] or keys
        in_turn = (self._start(each, keys, Barrier(1), IN_TURN) for each in range(THREADS))
        # What comes out wrong one after the other needs no second thread.
        if not keys or any(self._loading.result(thread) for thread in in_turn):
            return None
        number, begin = 0, perf_counter()
        with frequent_switches():
            while number < ROUNDS or perf_counter() - begin < SECONDS:
                if self._loading.is_over():
                    self.left_out = max(0, ROUNDS - number)
                    break
                some, together = (keys, often)[number % 2], Barrier(THREADS)
                threads = [self._start(each, some, together) for each in range(THREADS)]
                if wrong := [it for thread in threads for it in self._loading.result(thread)]:
                    return _finding(wrong, writes)
                number += 1
        return None

    def _start(
        self, number: int, keys: Sequence[Any], together: Barrier, share: float = 1.0
    ) -> WorkerThread:
        """Return a thread that loads all samples, from another one on than the others."""
        first = number * len(keys) // THREADS
        some = [*keys[first:], *keys[:first]]
        args = (self._load, self._loading.copy(), some, number, together, share)
        return WorkerThread(1 + number, *args)

    def _load(
        self, twin: Own, keys: Sequence[Any], number: int, together: Barrier, share: float
    ) -> list[Wrong]:
        """Load samples until a share of the time is over; return those that came out wrong."""
        found = []
        process = [(part, part.state()) for part in process_parts()]
        together.wait()
        for key in keys:
            if self._loading.is_over(share):
                break
            outcome = self._loading.load(twin, key, number % REPLICAS)
            difference = outcome.difference(self._expected[key])
            changes = (part.changed(state, part.state()) for part, state in process)
            changed = next(filter(None, changes), "")
            if difference or changed:
                found.append(Wrong(key, outcome, difference, changed))
        return found


@contextmanager
def frequent_switches() -> Iterator[None]:
    """Let threads change over as often as the interpreter can, in a ``with`` block."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(SWITCH_SECONDS)
    try:
        yield
    finally:
        sys.setswitchinterval(before)


def _finding(wrong: Sequence[Wrong], writes: Sequence[Write]) -> Finding:
    """Return what is wrong, with its likely cause."""
    for each in wrong:
        if each.process:
            text = f"samples change {each.process}, for all threads"
            return Finding("process-state", text, None, None, each.process)
    key, outcome, difference, _ = wrong[0]
    text = f"index {key!r} came out wrong ({difference}) when {THREADS} threads loaded samples"
    if not writes:
        return Finding("mixed-samples", text, outcome.line, key)
    cause = min(writes, key=lambda write: write.part.kind not in _LIKELY)
    text = f"{cause.name} is shared by all workers: {text}"
    return Finding(cause.part.kind, text, outcome.line, key, cause.name)
