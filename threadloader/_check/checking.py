"""Checks a dataset: one sample after the other, and in many threads at once."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import chdir, redirect_stderr, redirect_stdout
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from threadloader._check.findings import Finding, Line, Report
from threadloader._check.loading import IN_CALLING_THREAD, HangError, Loading
from threadloader._check.many_threads import ROUNDS, ManyThreads
from threadloader._check.serial import Serial
from threadloader.errors import ThreadLoaderError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from threadloader._check.loading import LoadedSample
    from threadloader._settings import DatasetCopy


SECONDS = 120.0


class UncheckableError(ThreadLoaderError, ValueError):
    """No sample could be loaded, so there is nothing to check."""


def check(
    dataset: Any,
    *,
    dataset_copy: DatasetCopy = "auto",
    indices: Sequence[Any] | None = None,
    name: str | None = None,
    seconds: float = SECONDS,
    tell: Callable[[int], None] = lambda _: None,
) -> Report:
    """Check whether a dataset is safe in the threads of a `ThreadLoader`.

    Args:
        dataset: The dataset.
        dataset_copy: As for `ThreadLoader`: what each worker has of it.
        indices: The samples to load; by default 16 that are spread over the dataset.
        name: For the report; by default that of the class.
        seconds: At most, but for one sample of each thread, and for copies.  What is left out by
            then is a note of the report.
        tell: Called with the number of samples that were loaded, in any thread.

    Raises:
        TypeError: It is no dataset.
        UncheckableError: No sample could be loaded.
    """
    name = type(dataset).__name__ if name is None else name
    if isinstance(dataset, Iterator):
        note = "one thread reads an iterator, and no copies are made: nothing was tried"
        return Report(name, (), (note,))
    loading = Loading(dataset, dataset_copy, indices, seconds, tell)
    if not loading.keys:
        raise UncheckableError("the dataset has no samples")
    checking = _Checking(loading)
    # What samples leave of these would be missed; all else stays as they leave it.
    with chdir("."), redirect_stdout(sys.stdout), redirect_stderr(sys.stderr):
        checking.in_calling_thread()
        checking.in_workers()
    found = _each_once(checking.findings, _begins_at(loading.dataset))
    return Report(name, found, tuple(checking.notes), checking.loads, checking.tried)


class _Checking:
    """One check, step by step."""

    def __init__(self, loading: Loading) -> None:
        self.findings: list[Finding] = []
        self.notes: list[str] = []
        self.loads = self.tried = 0
        self._expected: dict[Any, LoadedSample] = {}
        self._loading = loading

    def in_calling_thread(self) -> None:
        """Load samples one after the other.

        Raises:
            UncheckableError: None of them can be loaded.
        """
        twin = self._loading.copy()
        for key in self._loading.keys:
            self._expected[key] = self._loading.load(twin, key)
            if self._loading.is_over(IN_CALLING_THREAD):
                break
        errors = {key: each.error for key, each in self._expected.items() if each.error}
        if errors:
            key, error = next(iter(errors.items()))
            if len(errors) == len(self._expected):
                raise UncheckableError(f"no sample could be loaded: {error}")
            self.notes.append(
                f"{len(errors)} of {len(self._expected)} samples raise an error; the first one, of "
                f"index {key!r}: {error}"
            )
        if number := len(self._loading.keys) - len(self._expected):
            text = f"{number} of {len(self._loading.keys)} samples were left out for lack of time"
            self.notes.append(text)

    def in_workers(self) -> None:
        """Load samples in a worker's thread, and in many at once."""
        try:
            self._in_threads()
        except HangError:
            self.findings.append(Finding("hang", "threads that load at once do not end"))

    def _in_threads(self) -> None:
        serial = Serial(self._loading, self._expected)
        self.findings += serial.findings()
        if self._loading.sharing.cut_off:
            self.notes.append("workers share too many objects to look at all of them")
        self.loads = self._loading.ended
        many = ManyThreads(self._loading, self._expected)
        wrong = many.first_wrong(serial.repeating, serial.writes)
        self.tried = self._loading.ended - self.loads
        if wrong is not None:
            self.findings.append(wrong)
        if many.left_out:
            text = (
                f"{many.left_out} of {ROUNDS} rounds of many threads were left out for lack of time"
            )
            self.notes.append(text)
        found = {each.name for each in self.findings}
        names = [name for name in dict.fromkeys(w.name for w in serial.writes) if name not in found]
        if names:
            text = f"samples change what all workers share: {', '.join(names)}"
            self.notes.append(f"{text}; nothing was seen to come out wrong by it")


def _each_once(findings: Sequence[Finding], begins: Line | None) -> tuple[Finding, ...]:
    """Return findings, one about what has a name, and of others one of a kind at one line.

    Args:
        findings: In the order in which they were found.
        begins: The line for those that have none.
    """
    kept: dict[Any, Finding] = {}
    for each in findings:
        line = each.line or begins
        # Whatever was found before may well explain mixed samples.
        if each.kind != "mixed-samples" or not kept:
            kept.setdefault(each.name or (each.kind, line), replace(each, line=line))
    return tuple(kept.values())


def _begins_at(dataset: Any) -> Line | None:
    """Return the line where the method that loads a sample begins; None if it is not Python."""
    names = ("__getitem__", "__getitems__", "__iter__")
    codes = (getattr(getattr(type(dataset), name, None), "__code__", None) for name in names)
    code = next(filter(None, codes), None)
    return None if code is None else Line(code.co_filename, code.co_firstlineno)
