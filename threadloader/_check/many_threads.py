"""Samples loaded by many threads at once, which change over as often as the interpreter can.

Each sample must come out as it does alone.  With a GIL a thread is switched away where functions
are called, loops jump back and calls wait; without one, anywhere.
"""

from __future__ import annotations

import sys
from contextlib import ExitStack, contextmanager
from threading import Barrier
from time import perf_counter
from typing import TYPE_CHECKING, Any, NamedTuple

from threadloader._check.findings import Finding
from threadloader._check.loading import REPLICAS, WorkerThread
from threadloader._check.sharing import process_parts

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from concurrent.futures import Future

    from threadloader._check.loading import LoadedSample, Loading, Twin
    from threadloader._check.serial import Write


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
    """Threads that load samples of one dataset at once; a ``with`` block ends them.

    Args:
        loading: Loads the samples.
        expected: The samples as one thread loads them.
        is_over: Returns whether there is no time left.

    Attributes:
        tried: Samples that were loaded at once.
        left_out: Of the least number of rounds: those that there was no time for.

    Threads:
        all: the one that checks.
    """

    def __init__(
        self,
        loading: Loading,
        expected: Mapping[Any, LoadedSample],
        is_over: Callable[[], bool],
    ) -> None:
        self.tried = self.left_out = 0
        self._loading, self._expected, self._is_over = loading, expected, is_over

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
        with ExitStack() as ends, frequent_switches():
            threads = [ends.enter_context(WorkerThread(1 + n)) for n in range(THREADS)]
            # What comes out wrong one after the other needs no second thread.
            if not keys or self._round(threads, keys, in_turn=True):
                return None
            wrong = self._rounds(threads, keys, often)
        return _finding(wrong, writes) if wrong else None

    def _rounds(
        self, threads: Sequence[WorkerThread], keys: Sequence[Any], often: Sequence[Any]
    ) -> Sequence[Wrong]:
        wrong: Sequence[Wrong] = ()
        number, begin = 0, perf_counter()
        while not wrong and (number < ROUNDS or perf_counter() - begin < SECONDS):
            if self._is_over():
                self.left_out = max(0, ROUNDS - number)
                break
            # Half of the rounds with what samples set up still to be set up.
            some, unused = (keys, often)[number // 2 % 2], bool(number % 2)
            wrong = self._round(threads, some, unused=unused)
            number += 1
        return wrong

    def _round(
        self,
        threads: Sequence[WorkerThread],
        keys: Sequence[Any],
        *,
        unused: bool = False,
        in_turn: bool = False,
    ) -> list[Wrong]:
        """Load all samples in each thread, each from another one on; return what is wrong."""
        twins = self._loading.copies(len(threads), unused=unused)
        together = Barrier(1 if in_turn else len(threads))
        found, futures = [], []
        for number, (thread, twin) in enumerate(zip(threads, twins, strict=True)):
            first = number * len(keys) // len(threads)
            some = [*keys[first:], *keys[:first]]
            futures.append(thread.start(self._load, twin, some, number, together))
            if in_turn:
                found += self._result(futures.pop())
        for future in futures:
            found += self._result(future)
        return found

    def _result(self, future: Future[tuple[int, list[Wrong]]]) -> list[Wrong]:
        result: tuple[int, list[Wrong]] = self._loading.result(future)
        self.tried += result[0]
        return result[1]

    def _load(
        self, twin: Twin, keys: Sequence[Any], number: int, together: Barrier
    ) -> tuple[int, list[Wrong]]:
        """Load samples in the calling thread; return how many, and which came out wrong."""
        process = [(part, part.state()) for part in process_parts()]
        loaded, wrong = 0, []
        together.wait()
        for key in keys:
            outcome = self._loading.load(twin, key, number % REPLICAS)
            difference = outcome.difference(self._expected[key])
            changed = next((part.path for part, state in process if part.state() != state), "")
            loaded += 1
            if difference or changed:
                wrong.append(Wrong(key, outcome, difference, changed))
            if self._is_over():
                break
        return loaded, wrong


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
