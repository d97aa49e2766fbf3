"""Samples loaded one after the other: what they are, what they change, and whether they repeat."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from threadloader._check.contents import contents, difference
from threadloader._check.findings import Finding

if TYPE_CHECKING:
    from collections.abc import Mapping

    from threadloader._check.interleaving import TwoThreads
    from threadloader._check.loading import LoadedSample, Loading
    from threadloader._check.tracing import Recording


class Serial:
    """The samples of a dataset, loaded by one thread after the other.

    Args:
        loading: Loads the samples.
        threads: The same in workers' threads.
        expected: The samples, as the calling thread has loaded them.

    Attributes:
        recordings: Of each of them, loaded in a worker's thread.

    Threads:
        all: the one that checks.
    """

    def __init__(
        self, loading: Loading, threads: TwoThreads, expected: Mapping[Any, LoadedSample]
    ) -> None:
        self._loading, self._threads, self._expected = loading, threads, expected
        self.recordings: dict[Any, Recording] = {}
        self._different: dict[Any, tuple[LoadedSample, str]] = {}
        for key, recording, outcome in threads.recorded(loading.keys[::-1], unused=False):
            self.recordings[key] = recording
            text = outcome.difference(expected[key])
            if text is not None:
                self._different[key] = outcome, text
        self._writes = [w for recording in self.recordings.values() for w in recording.writes]

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
        for key, recording in self.recordings.items():
            for _, part, name, line in recording.writes:
                if part.kind == "process-state":
                    text = f"samples change {name}, for all threads"
                    yield Finding(part.kind, text, line, None, name)
                elif part.kind == "random-state":
                    text = f"{name} is shared by all workers, and samples draw from it"
                    yield Finding(part.kind, f"index {key!r}: {text}", line, key, name)
        overwritten = self._overwritten()
        if overwritten is not None:
            yield overwritten
        elif self._different and all(write.part.kind != "random-state" for write in self._writes):
            yield self._not_the_same()

    def _overwritten(self) -> Finding | None:
        """Return the finding that a sample is no more what it was when it was loaded first."""
        for key, outcome in self._expected.items():
            path = difference(outcome.parts, contents(outcome.sample))
            if outcome.error is None and path is not None:
                text = f"sample{path} of index {key!r} was different after others had been loaded"
                writes = (each for each in self._writes if each.part.kind == "shared-container")
                write = next(writes, None)
                if write is None:
                    return Finding("shared-buffer", text, None, key)
                text += f": samples change {write.name}, which all workers share"
                return Finding("shared-buffer", text, write.line, key, write.name)
        return None

    def _not_the_same(self) -> Finding:
        """Return the finding that a sample was different when it was loaded again."""
        key, (outcome, text) = next(iter(self._different.items()))
        again = self._loading.load(self._loading.copy(), key)
        ((_, wrong_there),) = self._threads.in_turn([key])
        if again.difference(self._expected[key]) is None and wrong_there:
            text = f"index {key!r}: in a worker's thread, {text}"
            return Finding("thread-bound", text, outcome.line, key)
        iterators = (
            part.path
            for part in self._loading.sharing().parts
            if part.kind == "shared-container" and isinstance(part.value, Iterator)
        )
        name = next((write.name for write in self._writes), next(iterators, ""))
        text = f"index {key!r}: loaded again, with the same seed, {text}"
        text += f"; samples change {name}, which all workers share" if name else ""
        return Finding("not-repeatable", text, outcome.line, key, name)
