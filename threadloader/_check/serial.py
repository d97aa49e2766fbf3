"""Samples loaded one after the other: what they are, what they change, and whether they repeat."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from threadloader._check.contents import array_of, contents, difference
from threadloader._check.findings import Finding
from threadloader._check.sharing import Sharing
from threadloader._check.states import same
from threadloader._check.whose_code import line_of
from threadloader._fetch.kinds import CONTAINERS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from threadloader._check.findings import Line
    from threadloader._check.loading import LoadedSample, Loading, WorkerThread
    from threadloader._check.sharing import States
    from threadloader._check.states import SharedObject

__all__ = ["Pass", "Serial", "begins_at", "direct_findings"]


class Pass(NamedTuple):
    """One pass over the samples."""

    sharing: Sharing
    start: States  # before it
    changed: dict[
        int, tuple[SharedObject, Any, str]
    ]  # by ids: the part, the first sample, the name
    changing: dict[Any, None]  # the samples that change anything

    @property
    def parts(self) -> list[SharedObject]:
        """The parts that were changed."""
        return [part for part, _, _ in self.changed.values()]


class Serial:
    """The samples of a dataset, loaded by one thread at a time.

    The first pass is in the calling thread, with the dataset as it was given; the second in a
    worker's, in reverse order, with what the first has left.

    Args:
        loading: Loads the samples.
        thread: A worker's.
        tell: Called with what is done now, and how often it was.

    Threads:
        all: the one that checks.
    """

    def __init__(
        self, loading: Loading, thread: WorkerThread, tell: Callable[[str, int], None]
    ) -> None:
        self.loads = 0
        self._tell = tell
        self._loading, self._thread = loading, thread
        self.expected: dict[Any, LoadedSample] = {}
        self.findings: list[Finding] = []
        self._differing: list[tuple[Any, LoadedSample, str]] = []

    def first_pass(self) -> Pass:
        """Load all samples in the calling thread, and see whether one overwrites another."""
        twin = self._loading.copy()
        found = self._pass(twin, self._loading.keys, in_thread=False)
        self._look_at_buffers(found)
        return found

    def second_pass(self, first: Pass) -> Pass:
        """Load all samples again; see whether they are the same, in a worker's thread, too."""
        twin = self._loading.copy()
        own = Sharing((twin, self._loading.copy()))
        before = {id(part): part.state() for part in own.own}
        found = self._pass(twin, list(reversed(self._loading.keys)), in_thread=True)
        self._look_at_buffers(found)
        if self._differing:
            written = [
                part.name(before[id(part)], part.state())
                for part in own.own
                if not same(before[id(part)], part.state())
            ]
            self._explain(*self._differing[0], first, found, written)
        return found

    def _pass(self, twin: Any, keys: Sequence[Any], *, in_thread: bool) -> Pass:
        sharing = Sharing((self._loading.copy(), self._loading.copy()))
        found = Pass(sharing, sharing.states(), {}, {})
        before = found.start
        for key in keys:
            outcome = self._load(twin, key, in_thread=in_thread)
            for part in sharing.changed(before):
                name = part.name(before[id(part)], part.state())
                found.changed.setdefault(id(part), (part, key, name))
                found.changing[key] = None
            if found.changed:
                before = sharing.states()
            if key not in self.expected:
                self.expected[key] = outcome
            elif (text := outcome.difference(self.expected[key])) is not None:
                self._differing.append((key, outcome, text))
        return found

    def _load(self, twin: Any, key: Any, *, in_thread: bool) -> LoadedSample:
        self.loads += 1
        self._tell("samples loaded one by one", self.loads)
        if in_thread:
            outcome: LoadedSample = self._thread.start(self._loading.load, twin, key).result()
            return outcome
        return self._loading.load(twin, key)

    def _look_at_buffers(self, found: Pass) -> None:
        """See whether the samples of the first pass are still what they were."""
        for key, outcome in self.expected.items():
            if any(finding.kind == "shared-buffer" for finding in self.findings):
                return
            path = difference(outcome.parts, contents(outcome.sample))
            if outcome.error is None and path is not None:
                part = _memory_of(outcome.sample, found.sharing)
                name = "" if part is None else f", the memory of {part.path},"
                text = (
                    f"sample{path} of index {key!r}{name} was different after other samples had "
                    "been loaded"
                )
                line = begins_at(self._loading.dataset)
                self.findings.append(Finding("shared-buffer", text, line, key))

    def _explain(
        self,
        key: Any,
        outcome: LoadedSample,
        text: str,
        first: Pass,
        second: Pass,
        written: list[str],
    ) -> None:
        """Say why a sample was different when it was loaded for the second time."""
        if any(finding.kind == "shared-buffer" for finding in self.findings):
            return  # which explains it
        line = outcome.line or begins_at(self._loading.dataset)
        here = self._load(self._loading.copy(), key, in_thread=False)
        there = self._load(self._loading.copy(), key, in_thread=True)
        expected = self.expected[key]
        if here.difference(expected) is None and there.difference(expected) is not None:
            self._add("thread-bound", f"in a worker's thread, {text}", line, key)
            return
        parts = [*first.changed.values(), *second.changed.values()]
        if any(part.kind == "random-state" or not part.can_be_put_back for part, _, _ in parts):
            return  # which is a finding of its own
        cause = self._cause(key, first) or self._cause(key, second)
        if cause is not None:
            part, name = cause
            why = f"{name} is shared by all workers, and samples change it: loaded again, {text}"
            self._add(part.kind, why, line, key)
            return
        again = self._load(self._loading.copy(), key, in_thread=False)
        if written and here.difference(again) is None:
            names = ", ".join(written)
            why = f"{text} after its worker had loaded others, which changed {names}"
            self._add("own-attribute", why, line, key)
            return
        blind = next((part for part in second.sharing.parts if part.is_blind), None)
        if blind is not None:
            why = f"{blind.path} is shared by all workers, and samples take from it: {text}"
            self._add(blind.kind, why, line, key)
            return
        self._add("not-repeatable", f"loaded again, with the same seed, {text}", line, key)

    def _cause(self, key: Any, found: Pass) -> tuple[SharedObject, str] | None:
        """Return the part on whose state a sample depends, and its name; None for none."""
        now = found.sharing.states()
        found.sharing.put_back(found.start, found.parts)
        at_start = [self._load_fresh(key, found, found.start) for _ in range(2)]
        if at_start[0].difference(at_start[1]) is not None:
            found.sharing.put_back(now)
            return None
        for part, _, name in found.changed.values():
            part.put_back(now[id(part)])
            if self._load_fresh(key, found, None).difference(at_start[0]) is not None:
                found.sharing.put_back(now)
                return part, name
            found.sharing.put_back(found.start, found.parts)
        found.sharing.put_back(now)
        return None

    def _load_fresh(self, key: Any, found: Pass, states: States | None) -> LoadedSample:
        """Load a sample with a new copy, and put back what it changes."""
        outcome = self._load(self._loading.copy(), key, in_thread=False)
        if states is not None:
            found.sharing.put_back(states, found.parts)
        return outcome

    def _add(self, kind: str, text: str, line: Line | None, key: Any) -> None:
        self.findings.append(Finding(kind, f"index {key!r}: {text}", line, key))


def direct_findings(found: Pass, *, again: bool) -> Iterator[tuple[SharedObject, Any, str, str]]:
    """Yield what needs no second thread to be wrong: the part, the sample, the name, and the text.

    Args:
        found: A pass over the samples.
        again: Whether all samples had been loaded before: what the first one sets up is harmless.
    """
    for part, key, name in found.changed.values():
        if part.kind == "random-state":
            yield part, key, name, f"{name} is shared by all workers, and samples draw from it"
        elif not part.can_be_put_back:
            yield part, key, name, f"{name} is shared by all workers, and samples take from it"
        elif part.kind == "process-state" and again:
            yield part, key, name, f"samples change {name}, for all threads"


def begins_at(dataset: Any) -> Line | None:
    """Return the line where the method that loads a sample begins; None if it is not Python."""
    for name in ("__getitem__", "__getitems__", "__iter__"):
        code = getattr(getattr(type(dataset), name, None), "__code__", None)
        if code is not None:
            return line_of(code)
    return None


def _memory_of(sample: Any, sharing: Sharing) -> SharedObject | None:
    """Return the part whose memory a sample is."""
    leaves = list(_leaves(sample))
    for part in sharing.parts:
        array = array_of(part.value)
        for leaf in leaves:
            if part.value is leaf and isinstance(leaf, (*CONTAINERS, bytearray)):
                return part
            its = array_of(leaf)
            if array is not None and its is not None and np.may_share_memory(array, its):
                return part
    return None


def _leaves(sample: Any) -> Iterator[Any]:
    yield sample
    if isinstance(sample, dict):
        for part in sample.values():
            yield from _leaves(part)
    elif isinstance(sample, (list, tuple)):
        for part in sample:
            yield from _leaves(part)
