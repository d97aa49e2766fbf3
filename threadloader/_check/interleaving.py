"""Forced interleavings: a thread is held at each place of a sample, while another loads samples.

Each sample must come out as it does alone, and no update of a number may be lost.
"""

from __future__ import annotations

from itertools import product
from typing import TYPE_CHECKING, Any

from threadloader._check.findings import Finding
from threadloader._check.tracing import MOST_BESIDE, chosen_steps, some, steps_beside

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from threadloader._check.states import SharedObject
    from threadloader._check.tracing import Recording, Write
    from threadloader._check.two_threads import TwoThreads

__all__ = ["Interleavings"]

MOST_WRONG = 6  # places of one pair that show that it is wrong
_COUNTED = frozenset({"shared-attribute", "class-attribute", "global-variable", "shared-container"})
_LIKELY = frozenset({"shared-handle", "random-state"})  # to be the cause, of several


class Interleavings:
    """Looks for places of samples at which another thread makes something wrong.

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

    def unused(self, keys: Sequence[Any]) -> list[Finding]:
        """Do what `pair` does, each time with a dataset of which no sample was loaded before."""
        found = self._threads.recorded(keys, unused=True)
        recordings = [recording for _, recording, _ in found]
        if not any(recording.writes for recording in recordings):
            return []  # the first sample of all is one like the others
        return self.pair(keys, recordings, unused=True)

    def pair(
        self, keys: Sequence[Any], recordings: Sequence[Recording], *, unused: bool = False
    ) -> list[Finding]:
        """Hold a sample at each of its places while others are loaded; return what is wrong.

        Args:
            keys: The index of the sample that is held, and then those of the others.
            recordings: Of each of them.
            unused: Whether each try has a dataset of which no sample was loaded.

        Raises:
            HangError: The threads wait for each other.
        """
        pair = _Pair(self._threads, keys, recordings, unused=unused)
        found = self._tried(pair, ((step, None) for step in chosen_steps(recordings[0])))
        if found:
            return found
        # Both are held, each beside its changes of what the other changes, too.
        pair = _Pair(self._threads, keys[:2], recordings[:2], unused=unused)
        own, its = (some(steps_beside(each, pair.both), MOST_BESIDE) for each in recordings[:2])
        return self._tried(pair, product(own, its))

    def _tried(self, pair: _Pair, steps: Iterable[tuple[int, int | None]]) -> list[Finding]:
        """Return what is wrong, one finding for each cause."""
        found: dict[tuple[str, str], Finding] = {}
        for step, other_step in steps if pair.is_right() else ():
            if self._is_over():
                self.left_out += 1
                continue
            self.tried += 1
            wrong = pair.wrong_at(step, other_step)
            if wrong is not None:
                found.setdefault((wrong.kind, wrong.name), wrong)
                # What is broken for good shows nothing any more.
                if len(found) >= MOST_WRONG or not pair.is_right():
                    break
        return list(found.values())


class _Pair:
    """A sample that is held, and those that another thread loads meanwhile.

    Args:
        threads: Load the samples.
        keys: Their indices, first of the one that is held.
        recordings: Of each of them.
        unused: See `Interleavings.pair`.

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
        # What all add together to the numbers in these parts, in whatever order.
        self._adds: _Numbers = {}

    def is_right(self) -> bool:
        """Whether the samples come out right, loaded one after the other."""
        if self._unused:
            return True
        added = []
        for back in (False, False, True):
            before = _numbers(self._parts)
            if any(wrong for _, wrong in self._threads.in_turn(self._keys, back=back)):
                return False
            added.append(_added(before, self._parts))
        first, *rest = added
        self._adds = {
            place: number
            for place, number in first.items()
            if number and all(each.get(place) == number for each in rest)
        }
        return True

    def wrong_at(self, step: int, other_step: int | None) -> Finding | None:
        """Load the samples at once; return what is wrong.

        Args:
            step: The number of the place where the one is held.
            other_step: Where the other thread is held then; None for nowhere.
        """
        before = _numbers(self._parts)
        loaded = self._threads.at_once(self._keys, step, other_step, unused=self._unused)
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
