"""Samples loaded one after the other: what they are, what they change, and whether they repeat."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

from threadloader._check.contents import contents, difference
from threadloader._check.findings import Finding
from threadloader._check.loading import IN_A_WORKER, WorkerThread

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from threadloader._check.loading import LoadedSample, Loading
    from threadloader._check.sharing import SharedObject


class Write(NamedTuple):
    """A change of something that is shared, by a sample."""

    key: Any
    part: SharedObject
    name: str


class Serial:
    """The samples of a dataset, loaded by one thread after the other.

    Args:
        loading: Loads the samples.
        expected: The samples, as the calling thread has loaded them.

    Attributes:
        writes: What samples leave changed of what workers share.

    Threads:
        all: the one that checks.
    """

    def __init__(self, loading: Loading, expected: Mapping[Any, LoadedSample]) -> None:
        self._loading, self._expected = loading, expected
        self.writes: list[Write] = []
        self._again: dict[Any, tuple[LoadedSample, str | None]] = {}
        self._in_a_worker(self._load_all)

    def _in_a_worker(self, function: Callable[..., Any], *args: Any) -> Any:
        """Return what a function returns, in a thread of its own."""
        thread = WorkerThread(0, function, *args)
        thread.join()  # with no limit: alone, it waits for no other thread
        return self._loading.result(thread)

    def _load_all(self) -> None:
        """Load the samples in the calling thread, the last one first; note what they change."""
        twin, parts = self._loading.copy(), self._loading.sharing.parts
        states = [part.state() for part in parts]
        for key in [*self._expected][::-1]:
            outcome = self._loading.load(twin, key)
            self._again[key] = outcome, outcome.difference(self._expected[key])
            for place, part in enumerate(parts):
                before, states[place] = states[place], part.state()
                if name := part.changed(before, states[place]):
                    self.writes.append(Write(key, part, name))
            if self._loading.is_over(IN_A_WORKER):
                break

    @property
    def repeating(self) -> list[Any]:
        """The samples that came out the same again, and without an error."""
        return [
            key
            for key, each in self._expected.items()
            if each.error is None and self._again.get(key, (None, ""))[1] is None
        ]

    def findings(self) -> Iterator[Finding]:
        """Yield what needs no second thread to be wrong."""
        for key, part, name in self.writes:
            if part.kind == "process-state":
                text = f"samples change {name}, for all threads"
                yield Finding(part.kind, text, None, None, name)
            elif part.kind == "random-state":
                text = f"{name} is shared by all workers, and samples draw from it"
                yield Finding(part.kind, f"index {key!r}: {text}", None, key, name)
        overwritten = self._overwritten()
        if overwritten is not None:
            yield overwritten
        elif all(write.part.kind != "random-state" for write in self.writes):
            for key, (outcome, different) in self._again.items():
                if different is not None:
                    yield self._not_the_same(key, outcome, different)
                    break

    def _overwritten(self) -> Finding | None:
        """Return the finding that a sample is no more what it was when it was loaded first."""
        for key, outcome in self._expected.items():
            path = difference(outcome.parts, contents(outcome.sample))
            if outcome.error is None and path is not None:
                text = f"sample{path} of index {key!r} was different after others had been loaded"
                writes = (each for each in self.writes if each.part.kind == "shared-container")
                write = next(writes, None)
                if write is None:
                    return Finding("shared-buffer", text, None, key)
                text += f": samples change {write.name}, which all workers share"
                return Finding("shared-buffer", text, None, key, write.name)
        return None

    def _not_the_same(self, key: Any, outcome: LoadedSample, text: str) -> Finding:
        """Return the finding that a sample was different when it was loaded again."""
        again = self._loading.load(self._loading.copy(), key)
        elsewhere = self._in_a_worker(self._loading.load, self._loading.copy(), key)
        there = elsewhere.difference(self._expected[key])
        if again.difference(self._expected[key]) is None and there is not None:
            text = f"index {key!r}: in a worker's thread, {there}"
            return Finding("thread-bound", text, outcome.line, key)
        iterators = (
            part.path
            for part in self._loading.sharing.parts
            if part.kind == "shared-container" and isinstance(part.value, Iterator)
        )
        name = next((write.name for write in self.writes), next(iterators, ""))
        text = f"index {key!r}: loaded again, with the same seed, {text}"
        text += f"; samples change {name}, which all workers share" if name else ""
        return Finding("not-repeatable", text, outcome.line, key, name)
