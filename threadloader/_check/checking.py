"""Checks a dataset: one sample after the other, and in many threads at once.

Each sample must come out with others as it does alone.  With a GIL a thread is switched away where
functions are called, loops jump back and calls wait; without one, anywhere.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import chdir, redirect_stderr, redirect_stdout
from dataclasses import replace
from threading import Barrier
from time import perf_counter
from typing import TYPE_CHECKING, Any

from threadloader._check.contents import contents, difference
from threadloader._check.findings import Finding, Report
from threadloader._check.loading import REPLICAS, HangError, Loading, WorkerThread
from threadloader._check.sharing import process_parts
from threadloader.errors import ThreadLoaderError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from threadloader._check.loading import LoadedSample
    from threadloader._engine.copies import Own
    from threadloader._engine.settings import DatasetCopy


SECONDS = 120.0
# Of that: what may be over when samples were loaded by the calling thread, by a worker, and by
# several in turn.
IN_CALLING_THREAD, IN_A_WORKER, IN_TURN = 1 / 3, 2 / 3, 5 / 6
THREADS = 8
ROUNDS = 10  # of all threads at once, at the least
ROUND_SECONDS = 1.0  # as many more rounds as fit into it
SWITCH_SECONDS = 1e-6  # asked for; the system takes some 50 us
_LIKELY = frozenset({"shared-handle", "random-state"})  # to be the cause, of several


class UncheckableError(ThreadLoaderError, ValueError):
    """No sample could be loaded, so there is nothing to check."""


def check(
    dataset: Any,
    *,
    dataset_copy: DatasetCopy = "auto",
    indices: Sequence[Any] | None = None,
    seconds: float = SECONDS,
    tell: Callable[[int], None] = lambda _: None,
) -> Report:
    """Check whether a dataset is safe in the threads of a `ThreadLoader`.

    Args:
        dataset: The dataset.
        dataset_copy: As for `ThreadLoader`: what each worker has of it.
        indices: The samples to load; by default 16 that are spread over the dataset.
        seconds: At most, but for one sample of each thread, and for copies.  What is left out by
            then is a note of the report.
        tell: Called with the number of samples that were loaded, in any thread.

    Raises:
        TypeError: It is no dataset.
        UncheckableError: No sample could be loaded.
    """
    if isinstance(dataset, Iterator):
        note = "one thread reads an iterator, and no copies are made: nothing was tried"
        return Report((), (note,))
    loading = Loading(dataset, dataset_copy, indices, seconds, tell)
    if not loading.keys:
        raise UncheckableError("the dataset has no samples")
    checking = _Checking(loading)
    # What samples leave of these would be missed; all else stays as they leave it.
    with chdir("."), redirect_stdout(sys.stdout), redirect_stderr(sys.stderr):
        checking.in_calling_thread()
        checking.in_workers()
    found = _each_once(checking.findings, dataset)
    return Report(found, tuple(checking.notes), checking.loads, loading.ended - checking.loads)


class _Checking:
    """One check, step by step.

    Threads:
        _load_again, _load: a worker.
        all others: the one that checks.
    """

    def __init__(self, loading: Loading) -> None:
        self.findings: list[Finding] = []
        self.notes: list[str] = []
        self.loads = 0  # one by one
        self._loading = loading
        self._expected: dict[Any, LoadedSample] = {}  # as the calling thread has loaded them
        # As a worker has, and what differs then.
        self._again: dict[Any, tuple[LoadedSample, str | None]] = {}
        # What samples leave changed of what workers share: the cause, if they come out wrong.
        self._writes: list[Finding] = []

    def in_calling_thread(self) -> None:
        """Load samples one after the other.

        Raises:
            UncheckableError: None of them can be loaded.
        """
        twin, keys = self._loading.copy(), self._loading.keys
        for key in keys:
            self._expected[key] = self._loading.load(twin, key)
            if self._loading.is_over(IN_CALLING_THREAD):
                break
        errors = {key: each.error for key, each in self._expected.items() if each.error}
        if errors:
            key, error = next(iter(errors.items()))
            if len(errors) == len(self._expected):
                raise UncheckableError(f"no sample could be loaded: {error}")
            some = f"{len(errors)} of {len(self._expected)} samples raise an error"
            self.notes.append(f"{some}; the first one, of index {key!r}: {error}")
        self._left_out(len(self._expected), len(keys), "samples")

    def in_workers(self) -> None:
        """Load samples in a worker's thread, and in many at once."""
        self._in_a_worker(self._load_again)
        self._left_out(len(self._again), len(self._expected), "samples, as a worker loads them,")
        self.findings += self._found_alone()
        if self._loading.sharing.cut_off:
            self.notes.append("workers share too many objects to look at all of them")
        self.loads = self._loading.ended
        try:
            self._at_once()
        except HangError:
            self.findings.append(Finding("hang", "threads that load at once do not end"))
        found = {each.name for each in self.findings}
        names = dict.fromkeys(each.name for each in self._writes if each.name not in found)
        if names:
            text = f"samples change what all workers share: {', '.join(names)}"
            self.notes.append(f"{text}; nothing was seen to come out wrong by it")

    def _left_out(self, done: int, most: int, what: str) -> None:
        if done < most:
            self.notes.append(f"{most - done} of {most} {what} were left out for lack of time")

    # One by one

    def _in_a_worker(self, function: Callable[..., Any], *args: Any) -> Any:
        """Return what a function returns, in a thread of its own."""
        thread = WorkerThread(0, function, *args)
        thread.join()  # with no limit: alone, it waits for no other thread
        return self._loading.result(thread)

    def _load_again(self) -> None:
        """Load the samples in the calling thread, the last one first; note what they change."""
        twin, parts = self._loading.copy(), self._loading.sharing.parts
        states = [part.state() for part in parts]
        for key in [*self._expected][::-1]:
            outcome = self._loading.load(twin, key)
            self._again[key] = outcome, outcome.difference(self._expected[key])
            for place, part in enumerate(parts):
                before, states[place] = states[place], part.state()
                if name := part.changed(before, states[place]):
                    text = f"samples change {name}"
                    self._writes.append(Finding(part.kind, text, index=key, name=name))
            if self._loading.is_over(IN_A_WORKER):
                break

    def _found_alone(self) -> Iterator[Finding]:
        """Yield what needs no second thread to be wrong."""
        for each in self._writes:
            if each.kind == "process-state":
                yield _of_process(each.name)
            elif each.kind == "random-state":
                text = f"{each.name} is shared by all workers, and samples draw from it"
                yield replace(each, message=f"index {each.index!r}: {text}")
        different = [(key, *it, text) for key, (*it, text) in self._again.items() if text]
        if (overwritten := self._overwritten()) is not None:
            yield overwritten
        elif different and all(each.kind != "random-state" for each in self._writes):
            yield self._not_the_same(*different[0])

    def _overwritten(self) -> Finding | None:
        """Return the finding that a sample is no more what it was when it was loaded first."""
        for key, outcome in self._expected.items():
            path = difference(outcome.parts, contents(outcome.sample))
            if outcome.error is None and path is not None:
                text = f"sample{path} of index {key!r} was different after others had been loaded"
                containers = (it.name for it in self._writes if it.kind == "shared-container")
                name = next(containers, "")
                text += f": samples change {name}, which all workers share" if name else ""
                return Finding("shared-buffer", text, None, key, name)
        return None

    def _not_the_same(self, key: Any, outcome: LoadedSample, text: str) -> Finding:
        """Return the finding that a sample was different when it was loaded again."""
        load, expected = self._loading.load, self._expected[key]
        again = load(self._loading.copy(), key)
        there = self._in_a_worker(load, self._loading.copy(), key).difference(expected)
        if again.difference(expected) is None and there is not None:
            text = f"index {key!r}: in a worker's thread, {there}"
            return Finding("thread-bound", text, outcome.line, key)
        name = next((write.name for write in self._writes), "")
        text = f"index {key!r}: loaded again, with the same seed, {text}"
        text += f"; samples change {name}, which all workers share" if name else ""
        return Finding("not-repeatable", text, outcome.line, key, name)

    # By many threads

    def _at_once(self) -> None:
        """Load samples at once, round by round, until one comes out wrong.

        Raises:
            HangError: Threads wait for each other.
        """
        loading = self._loading
        # Those that came out the same again, and without an error.
        keys = [
            key
            for key, each in self._expected.items()
            if each.error is None and self._again.get(key, (None, ""))[1] is None
        ]
        changing = {each.index for each in self._writes}
        often = ([key for key in keys if key in changing] * len(keys))[: len(keys)] or keys
        in_turn = (self._start(each, keys, Barrier(1), IN_TURN) for each in range(THREADS))
        # What comes out wrong one after the other needs no second thread.
        if not keys or any(loading.result(thread) for thread in in_turn):
            return
        number, begin, interval = 0, perf_counter(), sys.getswitchinterval()
        wrong: list[Finding] = []
        sys.setswitchinterval(SWITCH_SECONDS)
        try:
            # What has no cause yet may be one that samples undo before they end.
            while all(each.kind == "mixed-samples" for each in wrong) and (
                number < ROUNDS or perf_counter() - begin < ROUND_SECONDS
            ):
                if loading.is_over():
                    self._left_out(number, ROUNDS, "rounds of many threads")
                    break
                some, together = (keys, often)[number % 2], Barrier(THREADS)
                threads = [self._start(each, some, together) for each in range(THREADS)]
                wrong += [it for thread in threads for it in loading.result(thread)]
                number += 1
        finally:
            sys.setswitchinterval(interval)
        self.findings += sorted(wrong, key=lambda each: each.kind != "process-state")[:1]

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
    ) -> list[Finding]:
        """Load samples until a share of the time is over; return what came out wrong."""
        found = []
        process = [(part, part.state()) for part in process_parts()]
        together.wait()
        for key in keys:
            if self._loading.is_over(share):
                break
            outcome = self._loading.load(twin, key, number % REPLICAS)
            changes = (part.changed(state, part.state()) for part, state in process)
            if changed := next(filter(None, changes), ""):
                found.append(_of_process(changed))
            elif different := outcome.difference(self._expected[key]):
                found.append(self._wrong(key, outcome, different))
        return found

    def _wrong(self, key: Any, outcome: LoadedSample, different: str) -> Finding:
        """Return the finding that a sample came out wrong, with the likely cause."""
        text = f"index {key!r} came out wrong ({different}) when {THREADS} threads loaded samples"
        if not self._writes:
            return Finding("mixed-samples", text, outcome.line, key)
        cause = min(self._writes, key=lambda write: write.kind not in _LIKELY)
        text = f"{cause.name} is shared by all workers: {text}"
        return Finding(cause.kind, text, outcome.line, key, cause.name)


def _of_process(name: str) -> Finding:
    """Return the finding that samples change something of the process."""
    return Finding("process-state", f"samples change {name}, for all threads", name=name)


def _each_once(findings: Sequence[Finding], dataset: Any) -> tuple[Finding, ...]:
    """Return findings, one about what has a name, and of others one of a kind at one line.

    Args:
        findings: In the order in which they were found.
        dataset: For those without a line: where its method that loads a sample begins.
    """
    names = ("__getitem__", "__getitems__", "__iter__")
    codes = (getattr(getattr(type(dataset), name, None), "__code__", None) for name in names)
    code = next(filter(None, codes), None)  # None where it is not Python
    begins = None if code is None else f"{code.co_filename}:{code.co_firstlineno}"
    kept: dict[Any, Finding] = {}
    for each in findings:
        line = each.line or begins
        # Whatever was found before may well explain mixed samples.
        if each.kind != "mixed-samples" or not kept:
            kept.setdefault(each.name or (each.kind, line), replace(each, line=line))
    return tuple(kept.values())
