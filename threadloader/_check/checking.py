"""Checks a dataset: one sample after the other, interleaved by force, and hammered by threads."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from threadloader._check.findings import Finding, Report
from threadloader._check.hammering import hammer
from threadloader._check.interleaving import Interleavings
from threadloader._check.limit import HangError, Limit
from threadloader._check.loading import Loading, WorkerThread
from threadloader._check.serial import Serial, begins_at, direct_findings
from threadloader._check.slow import gil_finding, slow_dicts
from threadloader._threads.process_blocks import tangled
from threadloader._tuning.tuner import gil_is_enabled
from threadloader.errors import ThreadLoaderError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from threadloader._check.findings import Line
    from threadloader._check.interleaving import WrongSample
    from threadloader._check.serial import Pass
    from threadloader._check.states import SharedObject
    from threadloader._check.tracing import Write
    from threadloader._fetch.dataset_copy import DatasetCopy

__all__ = ["THREADS", "UncheckableError", "check"]

THREADS = 8
SECONDS = 120.0
MOST_WATCHED = 400  # parts that are looked at, at every place of a sample
MOST_PAIRS = 4


class UncheckableError(ThreadLoaderError, ValueError):
    """No sample could be loaded, so there is nothing to check."""


def check(
    dataset: Any,
    *,
    dataset_copy: DatasetCopy = "auto",
    indices: Sequence[Any] | None = None,
    threads: int = THREADS,
    name: str | None = None,
    seconds: float = SECONDS,
    tell: Callable[[str, int], None] = lambda _stage, _number: None,
) -> Report:
    """Check whether a dataset is safe in the threads of a `ThreadLoader`.

    What samples change is put back where that can be done.

    Args:
        dataset: The dataset.
        dataset_copy: As for `ThreadLoader`: what each worker has of it.
        indices: The samples to load; by default 16 that are spread over the dataset.
        threads: Threads that load at once at the end, at least 2.
        name: For the report; by default that of the class.
        seconds: For tries with two threads, and as many for those with more: at most, but for one
            try.  What is left out by then is a note of the report.
        tell: Called with what is done now, and how often it was.

    Raises:
        TypeError: It is no dataset.
        UncheckableError: No sample could be loaded.
    """
    gil_before = gil_is_enabled()
    name = type(dataset).__name__ if name is None else name
    if isinstance(dataset, Iterator):
        note = "one thread reads an iterator, and no copies are made: nothing was tried"
        return Report(name, (), (note,), 0, 0)
    loading = Loading(dataset, dataset_copy, indices)
    if not loading.keys:
        raise UncheckableError("the dataset has no samples")
    checking = _Checking(loading, Limit(loading, seconds, tell))
    thread, ends = WorkerThread("tlcheck-worker-0"), False
    try:
        checking.one_by_one(thread)
        ends = True
    except Exception:
        ends = True
        raise
    finally:
        thread.stop()
        if ends:  # after Ctrl-C the sample may go on for ever
            thread.join()
    with tangled():  # what samples leave is what is looked for
        checking.at_once(threads)
    switched = gil_finding(before=gil_before)
    if switched is not None:
        checking.findings.append(switched)
    checking.put_back()
    return Report(
        name,
        tuple(checking.findings),
        tuple(checking.notes),
        checking.serial.loads,
        checking.tried,
    )


class _Checking:
    """One check, step by step.

    Args:
        loading: Loads the samples.
        limit: Of the time.
    """

    def __init__(self, loading: Loading, limit: Limit) -> None:
        self._limit = limit
        self.findings: list[Finding] = []
        self.notes: list[str] = []
        self.tried = 0
        self._loading = loading
        self._passes: list[Pass] = []
        self._hung = False

    def one_by_one(self, thread: WorkerThread) -> None:
        """Load samples one after the other."""
        self.serial = serial = Serial(self._loading, thread, self._limit.tell)
        first = serial.first_pass()
        errors = [outcome.error for outcome in serial.expected.values()]
        if all(errors):
            raise UncheckableError(f"no sample could be loaded: {errors[0]}")
        if any(errors):
            failing = {index: each.error for index, each in serial.expected.items() if each.error}
            index, error = next(iter(failing.items()))
            self.notes.append(
                f"{len(failing)} of {len(errors)} samples raise an error; the first one, of index "
                f"{index!r}: {error}"
            )
        if first.sharing.cut_off:
            self.notes.append("the dataset has too many objects to look at all of them")
        second = serial.second_pass(first)
        self._passes = [first, second]
        self.findings += serial.findings
        self.findings += slow_dicts(second.sharing, begins_at(self._loading.dataset))

    def at_once(self, threads: int) -> None:
        """Load samples in two threads, one of which is held, and then in many."""
        try:
            first, second = self._passes
            self._limit.again()
            if first.changed:
                self._interleave(first, again=False)
            self._interleave(second, again=True)
            # Samples that don't repeat would all look wrong.
            if not self.findings and threads > 1:
                self._limit.again()
                self._limit.tell(f"in {threads} threads at once", 1)
                for mixture in hammer(self._loading, self.serial.expected, threads, self._limit):
                    self._add_mixture(mixture)
        except HangError:
            self._add("hang", "two threads that load at once do not end", None, None)

    def put_back(self) -> None:
        """Bring what is shared back to where it was before the check."""
        first, *_ = self._passes
        with suppress(Exception):
            first.sharing.put_back(first.start, first.parts)

    def _interleave(self, found: Pass, *, again: bool) -> None:
        candidates = found.parts
        process = [part for part in found.sharing.parts if part.kind == "process-state"]
        watched = found.sharing.parts if len(found.sharing.parts) <= MOST_WATCHED else []
        candidates = _without_doubles([*candidates, *process])
        found.sharing.put_back(found.start, candidates)
        interleavings = Interleavings(
            self._loading, found.sharing, found.start, candidates, self._limit
        )
        try:
            writes = self._writes(interleavings, found, _without_doubles([*candidates, *watched]))
            self._add_direct(found, writes, again=again)
            for key, others in self._pairs(found):
                for mixture in interleavings.pair(key, others):
                    self._add_mixture(mixture)
            self._add_orders(found, interleavings)
        except (HangError, KeyboardInterrupt):  # after Ctrl-C a sample may go on for ever
            self._hung = True
            raise
        finally:
            self.tried += interleavings.tried
            if interleavings.left_out:
                self.notes.append(
                    f"{interleavings.left_out} places at which threads can meet were left out for "
                    "lack of time"
                )
            if not self._hung:
                interleavings.close()

    def _add_orders(self, found: Pass, interleavings: Interleavings) -> None:
        """Look for two locks that one sample takes in one order, and another in the other."""
        for (one, other), (line, key) in interleavings.orders.items():
            if one < other and (other, one) in interleavings.orders:
                second_line, second_key = interleavings.orders[other, one]
                names = (found.sharing.lock_names[lock] for lock in (one, other))
                text = (
                    f"index {key!r} takes {' and then '.join(names)}, and index {second_key!r} "
                    f"takes them in the other order ({second_line}): two threads can wait for "
                    "each other for ever"
                )
                self._add("hang", text, line, key)

    def _writes(
        self, interleavings: Interleavings, found: Pass, watched: Sequence[SharedObject]
    ) -> list[Write]:
        """Return what the samples change, place by place; more parts become candidates by it."""
        writes: list[Write] = []
        for key in self._recorded_keys(found):
            writes += interleavings.record(key, watched).writes
        interleavings.add_candidates([write.part for write in writes])
        return writes

    def _recorded_keys(self, found: Pass) -> list[Any]:
        first = [key for _, key, _ in found.changed.values()]
        keys = self._good_keys()
        return list(dict.fromkeys([*first[: MOST_PAIRS - 2], keys[0], keys[-1]]))

    def _good_keys(self) -> list[Any]:
        """Return the samples that raise no error."""
        expected = self.serial.expected
        return [key for key in self._loading.keys if expected[key].error is None]

    def _pairs(self, found: Pass) -> Iterator[tuple[Any, tuple[Any, ...]]]:
        """Yield samples to be held, and those that are loaded meanwhile."""
        keys = self._good_keys()
        changing = [key for key in self._recorded_keys(found) if key in keys][: MOST_PAIRS - 2]
        for key in dict.fromkeys([keys[0], *changing]):
            others = [other for other in reversed(keys) if other != key]
            others.sort(key=lambda other: other not in found.changing)
            if others:
                yield key, tuple(others[:3])
        yield keys[-1], (keys[-1],)

    def _add_direct(self, found: Pass, writes: Sequence[Write], *, again: bool) -> None:
        fallback = begins_at(self._loading.dataset)
        for number, finding in enumerate(self.findings):
            if finding.kind == "shared-buffer":
                lines = (w.line for w in writes if f"memory of {w.part.path}," in finding.message)
                self.findings[number] = replace(finding, line=next(lines, finding.line))
        for part, key, name, text in direct_findings(found, again=again):
            line = next((write.line for write in writes if write.part is part), None)
            self._add(part.kind, f"index {key!r}: {text}", line or fallback, key, name)
        if again:
            for write in writes:
                if write.part.kind == "process-state":
                    text = f"samples change {write.part.path}, for all threads"
                    self._add("process-state", text, write.line, None, write.part.path)

    def _add_mixture(self, mixture: WrongSample) -> None:
        when = "when other threads loaded samples at once"
        if mixture.others:
            others = ", ".join(map(repr, mixture.others))
            when = (
                f"when one thread had come this far with index {mixture.key!r}, and another "
                f"loaded index {others}"
            )
        kind = "mixed-samples" if mixture.part is None else mixture.part.kind
        shared = f"{mixture.name} is shared by all workers: " if mixture.name else ""
        line = mixture.line or begins_at(self._loading.dataset)
        self._add(kind, f"{shared}{mixture.text} {when}", line, mixture.key, mixture.name)

    def _add(self, kind: str, text: str, line: Line | None, key: Any, name: str = "") -> None:
        """Add a finding, if there is none of its kind about the same."""
        for finding in self.findings:
            alike = finding.kind in {kind, "shared-buffer"} and bool(name)
            if (alike and name in finding.message) or (
                finding.kind == kind and finding.line == line
            ):
                return
        if kind == "mixed-samples" and self.findings:
            return  # which may well explain it
        self.findings.append(Finding(kind, text, line, key))


def _without_doubles(parts: Sequence[SharedObject]) -> list[SharedObject]:
    return list({id(part): part for part in parts}.values())
