"""Samples loaded one after the other: what they are, what they change, and whether they repeat."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

from threadloader._check.contents import contents, difference
from threadloader._check.findings import Finding

if TYPE_CHECKING:
    from collections.abc import Mapping

    from threadloader._check.loading import LoadedSample, Loading, WorkerThread
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
        thread: Of a worker.
        expected: The samples, as the calling thread has loaded them.

    Attributes:
        writes: What samples leave changed of what workers share.

    Threads:
        all: the one that checks.
    """

    def __init__(
        self, loading: Loading, thread: WorkerThread, expected: Mapping[Any, LoadedSample]
    ) -> None:
        self._loading, self._thread, self._expected = loading, thread, expected
        self.writes: list[Write] = []
        self._different: dict[Any, tuple[LoadedSample, str]] = {}
        # With no limit: alone, it waits for no other thread.
        thread.start(self._load_all).result()

    def _load_all(self) -> None:
        """Load all samples in the calling thread, the last one first; note what they change."""
        twin, parts = self._loading.copy(), self._loading.sharing().parts
        states = [part.state() for part in parts]
        for key in self._loading.keys[::-1]:
            outcome = self._loading.load(twin, key)
            text = outcome.difference(self._expected[key])
            if text is not None:
                self._different[key] = outcome, text
            for place, part in enumerate(parts):
                before, state = states[place], part.state()
                if state != before:
                    states[place] = state
                    self.writes.append(Write(key, part, part.name(before, state)))

    @property
    def repeating(self) -> list[Any]:
        """The samples that came out the same again, and without an error."""
        return [
            key
            for key, each in self._expected.items()
            if each.error is None and key not in self._different
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
        elif self._different and all(write.part.kind != "random-state" for write in self.writes):
            yield self._not_the_same()

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

    def _not_the_same(self) -> Finding:
        """Return the finding that a sample was different when it was loaded again."""
        key, (outcome, text) = next(iter(self._different.items()))
        again = self._loading.load(self._loading.copy(), key)
        job = self._thread.start(self._loading.load, self._loading.copy(), key)
        there = job.result().difference(self._expected[key])
        if again.difference(self._expected[key]) is None and there is not None:
            text = f"index {key!r}: in a worker's thread, {text}"
            return Finding("thread-bound", text, outcome.line, key)
        iterators = (
            part.path
            for part in self._loading.sharing().parts
            if part.kind == "shared-container" and isinstance(part.value, Iterator)
        )
        name = next((write.name for write in self.writes), next(iterators, ""))
        text = f"index {key!r}: loaded again, with the same seed, {text}"
        text += f"; samples change {name}, which all workers share" if name else ""
        return Finding("not-repeatable", text, outcome.line, key, name)
