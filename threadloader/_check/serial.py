"""Samples loaded one after the other: what they are, what they change, and whether they repeat."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from threadloader._check.contents import array_of, contents, difference, parts_of
from threadloader._check.findings import Finding
from threadloader._check.sharing import Sharing
from threadloader._fetch.parts import CONTAINERS

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from threadloader._check.loading import LoadedSample, Loading
    from threadloader._check.states import SharedObject
    from threadloader._check.tracing import Recording
    from threadloader._check.two_threads import TwoThreads

__all__ = ["Serial"]


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
            key, (outcome, text) = next(iter(self._different.items()))
            kind, why, name = self._why_different(key, text)
            yield Finding(kind, f"index {key!r}: {why}", outcome.line, key, name)

    def _overwritten(self) -> Finding | None:
        """Return the finding that a sample is no more what it was when it was loaded first."""
        for key, outcome in self._expected.items():
            path = difference(outcome.parts, contents(outcome.sample))
            if outcome.error is None and path is not None:
                part = _memory_of(outcome.sample, Sharing(self._loading.copies()).parts)
                name = "" if part is None else part.path
                memory = f", the memory of {name}," if name else ""
                text = f"sample{path} of index {key!r}{memory} was different after others had been"
                line = next((write.line for write in self._writes if write.name == name), None)
                return Finding("shared-buffer", f"{text} loaded", line, key, name)
        return None

    def _why_different(self, key: Any, text: str) -> tuple[str, str, str]:
        """Return why a sample was different when it was loaded again.

        Args:
            key: Its index.
            text: What was different.

        Returns:
            The kind of the finding, its text, and the name of what workers share.
        """
        here, expected = self._again(key), self._expected[key]
        ((_, wrong_there),) = self._threads.in_turn([key])
        if here.difference(expected) is None and wrong_there:
            return "thread-bound", f"in a worker's thread, {text}", ""
        parts = [write.part for write in self._writes]
        if parts and self._depends_on(parts, key):
            name = self._writes[0].name
            why = f"{name} is shared by all workers, and samples change it: loaded again, {text}"
            return parts[0].kind, why, name
        for part in Sharing(self._loading.copies()).parts:
            if part.kind == "shared-container" and isinstance(part.value, Iterator):
                why = f"{part.path} is shared by all workers, and samples take from it: {text}"
                return part.kind, why, part.path
        return "not-repeatable", f"loaded again, with the same seed, {text}", ""

    def _depends_on(self, parts: Sequence[SharedObject], key: Any) -> bool:
        """Whether a sample is the same again if parts are in the same state again."""
        seen = [([part.state() for part in parts], self._again(key)) for _ in range(3)]
        (before, outcome), (after, again) = seen[1:]
        return before != after or outcome.difference(again) is None

    def _again(self, key: Any) -> LoadedSample:
        return self._loading.load(self._loading.copy(), key)


def _memory_of(sample: Any, parts: Sequence[SharedObject]) -> SharedObject | None:
    """Return the part whose memory a sample is."""
    leaves = [leaf for _, leaf in parts_of(sample)]
    arrays = [array for array in map(array_of, leaves) if array is not None]
    containers = {id(leaf) for leaf in leaves if isinstance(leaf, (*CONTAINERS, bytearray))}
    for part in parts:
        array = array_of(part.value)
        if id(part.value) in containers or (
            array is not None and any(np.may_share_memory(array, each) for each in arrays)
        ):
            return part
    return None
