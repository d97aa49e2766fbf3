"""Checks a dataset: one sample after the other, and interleaved by force."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import chdir, redirect_stderr, redirect_stdout
from dataclasses import replace
from time import perf_counter
from typing import TYPE_CHECKING, Any

from threadloader._check.findings import Finding, Line, Report
from threadloader._check.interleaving import Interleaved, TwoThreads
from threadloader._check.loading import HangError, Loading, WorkerThread
from threadloader._check.serial import Serial
from threadloader._threads.process_blocks import tangled
from threadloader.errors import ThreadLoaderError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from threadloader._check.loading import LoadedSample
    from threadloader._fetch.dataset_copy import DatasetCopy


SECONDS = 120.0
MOST_CHANGING = 2  # samples that change something, and are held


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
        seconds: At most, but for one try, once samples were loaded one by one.  What is left out
            by then is a note of the report.
        tell: Called with the number of samples that were loaded, in any thread.

    Raises:
        TypeError: It is no dataset.
        UncheckableError: No sample could be loaded.
    """
    name = type(dataset).__name__ if name is None else name
    if isinstance(dataset, Iterator):
        note = "one thread reads an iterator, and no copies are made: nothing was tried"
        return Report(name, (), (note,))
    loading = Loading(dataset, dataset_copy, indices, tell)
    if not loading.keys:
        raise UncheckableError("the dataset has no samples")
    checking = _Checking(loading, seconds)
    # What samples leave of these would be missed; all else stays as they leave it.
    with chdir("."), redirect_stdout(sys.stdout), redirect_stderr(sys.stderr):
        checking.in_calling_thread()
        with tangled():  # what samples leave is what is looked for
            checking.in_workers()
    found = _each_once(checking.findings, _begins_at(loading.dataset))
    return Report(name, found, tuple(checking.notes), checking.loads, checking.tried)


class _Checking:
    """One check, step by step.

    Args:
        loading: Loads the samples.
        seconds: For tries with two threads or more.
    """

    def __init__(self, loading: Loading, seconds: float) -> None:
        self.findings: list[Finding] = []
        self.notes: list[str] = []
        self.loads = self.tried = 0
        self._expected: dict[Any, LoadedSample] = {}
        self._loading, self._seconds, self._end = loading, seconds, 0.0

    def in_calling_thread(self) -> None:
        """Load samples one after the other.

        Raises:
            UncheckableError: None of them can be loaded.
        """
        twin = self._loading.copy()
        for key in self._loading.keys:
            self._expected[key] = self._loading.load(twin, key)
        errors = {key: each.error for key, each in self._expected.items() if each.error}
        if errors:
            key, error = next(iter(errors.items()))
            if len(errors) == len(self._expected):
                raise UncheckableError(f"no sample could be loaded: {error}")
            self.notes.append(
                f"{len(errors)} of {len(self._expected)} samples raise an error; the first one, of "
                f"index {key!r}: {error}"
            )
        if self._loading.sharing().cut_off:
            self.notes.append("the dataset has too many objects to look at all of them")

    def in_workers(self) -> None:
        """Load samples in a worker's thread, and in two of which one is held."""
        try:
            self._in_two()
        except HangError:
            self.findings.append(Finding("hang", "two threads that load at once do not end"))

    def _in_two(self) -> None:
        with WorkerThread(0) as held, WorkerThread(1) as other:
            two = TwoThreads(held, other, self._loading, self._expected)
            serial = Serial(self._loading, two, self._expected)
            self.findings += serial.findings()
            self.loads = self._loading.ended
            self._end = perf_counter() + self._seconds
            several = list(_held_with_others(serial))
            tries = [Interleaved(two, keys) for keys in several[:1]]
            tries += [Interleaved(two, keys, serial.recordings) for keys in several]
            self.findings += filter(None, [each.first_wrong(self._is_over) for each in tries])
        self.tried = sum(each.tried for each in tries)
        left_out = sum(each.left_out for each in tries)
        if left_out:
            text = f"{left_out} places at which threads can meet were left out for lack of time"
            self.notes.append(text)

    def _is_over(self) -> bool:
        """Whether there is no time left."""
        return perf_counter() >= self._end


def _held_with_others(serial: Serial) -> Iterator[list[Any]]:
    """Yield samples to be held, each with those that are loaded meanwhile: itself among others."""
    keys = serial.repeating
    changing = [key for key in keys if serial.recordings[key].writes]
    for held in dict.fromkeys([*keys[:1], *changing[:MOST_CHANGING]]):
        others = [key for key in reversed(changing) if key != held] or [*keys[:0:-1]]
        yield [held, *others[:1], held, *others[:2][-1:]]


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
