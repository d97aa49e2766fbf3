"""Forced interleavings: a thread is held at each place of a sample, while another loads samples.

Each sample must come out as it does alone, and no update of a number may be lost.
"""

from __future__ import annotations

from itertools import product
from typing import TYPE_CHECKING, Any

from threadloader._check.findings import Finding
from threadloader._check.tracing import chosen_steps, steps_after

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from threadloader._check.states import SharedObject
    from threadloader._check.tracing import Recording, Write
    from threadloader._check.two_threads import TwoThreads

__all__ = ["Interleavings"]

_COUNTED = frozenset({"shared-attribute", "class-attribute", "global-variable", "shared-container"})
_LIKELY = frozenset({"shared-handle", "random-state"})  # to be the cause, of several


class Interleavings:
    """Looks for a place of a sample at which another thread makes something wrong.

    Args:
        threads: Load the samples.
        is_over: Returns whether there is no time for another try.

    Attributes:
        tried: Places at which a thread was held.
        left_out: Places that there was no time for.

    Threads:
        all: the one that checks.
    """

    def __init__(self, threads: TwoThreads, is_over: Callable[[], bool]) -> None:
        self.tried = self.left_out = 0
        self._threads, self._is_over = threads, is_over

    def unused(self, keys: Sequence[Any]) -> Finding | None:
        """Do what `used` does, each time with a dataset of which no sample was loaded before."""
        recordings = [each for _, each, _ in self._threads.recorded(keys, unused=True)]
        if not any(recording.writes for recording in recordings):
            return None  # the first sample of all is one like the others
        pair = _Pair(self._threads, keys, recordings, unused=True)
        return self._first_wrong(pair, ((step, None) for step in chosen_steps(recordings[0])))

    def used(self, keys: Sequence[Any], recordings: Sequence[Recording]) -> Finding | None:
        """Hold a sample at its places while others are loaded, until something is wrong.

        Args:
            keys: The index of the sample that is held, and then those of the others.
            recordings: Of each of them.

        Raises:
            HangError: The threads wait for each other.
        """
        pair = _Pair(self._threads, keys, recordings, unused=False)
        if not pair.is_right():
            return None
        found = self._first_wrong(pair, ((step, None) for step in chosen_steps(recordings[0])))
        # Both are held, each after its changes of what the other changes, too.
        after = (steps_after(each, pair.both) for each in recordings[:2])
        return found or self._first_wrong(pair, product(*after))

    def _first_wrong(self, pair: _Pair, steps: Iterable[tuple[int, int | None]]) -> Finding | None:
        for step, other_step in steps:
            if self._is_over():
                self.left_out += 1
                continue
            self.tried += 1
            wrong = pair.wrong_at(step, other_step)
            if wrong is not None:
                return wrong
        return None


class _Pair:
    """A sample that is held, and those that another thread loads meanwhile.

    Args:
        threads: Load the samples.
        keys: Their indices, first of the one that is held.
        recordings: Of each of them.
        unused: Whether each try has a dataset of which no sample was loaded.

    Attributes:
        both: The paths of the parts that both write.
    """

    def __init__(
        self,
        threads: TwoThreads,
        keys: Sequence[Any],
        recordings: Sequence[Recording],
        *,
        unused: bool,
    ) -> None:
        self._threads, self._keys, self._unused = threads, keys, unused
        self._held, *meanwhile = recordings
        self._others = [write for each in meanwhile for write in each.writes]
        self.both = {write.part.path for write in self._held.writes}
        self.both &= {write.part.path for write in self._others}
        counted = [
            write.part
            for write in self._held.writes
            if write.part.kind in _COUNTED and write.part.path in self.both
        ]
        self._parts = [] if unused else list(dict.fromkeys(counted))
        self._room: dict[frozenset[int], int] = {}  # see `TwoThreads.at_once`
        # What all add together to the numbers in these parts, in whatever order.
        self._adds: _Numbers = {}

    def is_right(self) -> bool:
        """Whether the samples come out right, loaded one after the other; call it first."""
        added = []
        for back in (False, True):
            before = _numbers(self._parts)
            if any(wrong for _, wrong in self._threads.in_turn(self._keys, back=back)):
                return False
            added.append({place: it for place, it in _added(before, self._parts).items() if it})
        self._adds = dict(added[0].items() & added[1].items())
        return True

    def wrong_at(self, step: int, other_step: int | None) -> Finding | None:
        """Load the samples at once; return what is wrong.

        Args:
            step: The number of the place where the one is held.
            other_step: Where the other thread is held then; None for nowhere.
        """
        before = _numbers(self._parts)
        steps, unused = (step, other_step), self._unused
        loaded = self._threads.at_once(self._keys, steps, self._room, unused=unused)
        for key, wrong in loaded:
            if wrong:
                text = f"index {key!r} came out wrong ({wrong})"
                return self._finding(step, text, self._cause(step))
        added = _added(before, self._parts)
        for (part, name), number in self._adds.items():
            if len(loaded) > 1 and added.get((part, name)) != number:
                cause = next(write for write in self._held.writes if write.part is part)
                return self._finding(step, "an update was lost", cause)
        return None

    def _cause(self, step: int) -> Write | None:
        """Return the likely cause of what goes wrong while the one is held at a step.

        It is best what both write, before the step and meanwhile; else what was written meanwhile,
        or before the step.
        """
        before = [write for write in self._held.writes if write.step < step][::-1]
        both = [write for write in before if write.part.path in self.both]
        causes = sorted(both or self._others or before, key=lambda w: w.part.kind not in _LIKELY)
        return next(iter(causes), None)

    def _finding(self, step: int, text: str, cause: Write | None) -> Finding:
        key, *others = self._keys
        text += (
            f" when one thread had come this far with index {key!r}, and another loaded index "
            f"{', '.join(map(repr, others))}"
        )
        if cause is None:
            return Finding("mixed-samples", text, self._held.steps[step].line, key)
        text = f"{cause.name} is shared by all workers: {text}"
        return Finding(cause.part.kind, text, cause.line, key, cause.name)


# By parts, and the names or places of the numbers in them.
_Numbers = dict[tuple["SharedObject", Any], float]


def _numbers(parts: Iterable[SharedObject]) -> _Numbers:
    return {(part, name): number for part in parts for name, number in part.numbers().items()}


def _added(before: _Numbers, parts: Iterable[SharedObject]) -> _Numbers:
    """Return what was added to the numbers of parts since."""
    after = _numbers(parts)
    return {place: number - before[place] for place, number in after.items() if place in before}
