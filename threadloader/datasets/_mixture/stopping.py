"""Where a mixture of finite sources ends: found from its weights, without a walk through it."""

from __future__ import annotations

from bisect import bisect_left
from typing import TYPE_CHECKING, Literal

from threadloader.datasets._mixture.weights import by_weight, shares

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

__all__ = ["ENDLESS", "STOPS", "Planned", "Stop", "end_of"]

Stop = Literal["first", "all", "once", "repeat"]
STOPS = ("first", "all", "once", "repeat")

# Positions, and the weights from there on.
Planned = list[tuple[int, tuple[int, ...]]]

ENDLESS = 1 << 62  # the length of a mixture without an end: loaders count that far


def end_of(stop: Stop, weights: Sequence[int], lengths: Sequence[int]) -> tuple[int, Planned]:
    """Return the length of a mixture, and the changes of its weights on the way there.

    Args:
        stop: ``"first"``: before a source is asked for a sample again.  ``"all"``: when all were
            asked for all their samples.  ``"once"``: as ``"all"``, and a source that is used up has
            no turn any more.  ``"repeat"``: never.
        weights: Whole numbers; a source without a weight does not count.
        lengths: Samples of each source.
    """
    if stop == "repeat":
        return ENDLESS, []
    if stop == "once":
        return _end_of_each(weights, lengths)
    sources = by_weight(weights)
    counts: Callable[[int], list[int]] = lambda length: shares(length, weights, sources)  # noqa: E731
    if stop == "first":
        return _first_where(
            lambda length: any(
                now > most for now, most in zip(counts(length), lengths, strict=True)
            )
        ) - 1, []
    needed = [length if weight else 0 for length, weight in zip(lengths, weights, strict=True)]
    return _first_where(
        lambda length: all(now >= least for now, least in zip(counts(length), needed, strict=True))
    ), []


def _end_of_each(weights: Sequence[int], lengths: Sequence[int]) -> tuple[int, Planned]:
    """Return the length of a mixture in which a source that is used up has no turn any more."""
    planned: Planned = []
    position, before = 0, [0] * len(lengths)
    while True:
        left = [length - count for length, count in zip(lengths, before, strict=True)]
        weights = tuple(weight if more else 0 for weight, more in zip(weights, left, strict=True))
        if not any(weights):
            return position, planned
        if position:
            planned.append((position, weights))
        more = _until_one_ends(weights, left)
        taken = shares(more, weights, by_weight(weights))
        before = [count + added for count, added in zip(before, taken, strict=True)]
        position += more


def _until_one_ends(weights: Sequence[int], lengths: Sequence[int]) -> int:
    """Return how many turns it takes until a source is used up."""
    sources = by_weight(weights)

    def is_reached(length: int) -> bool:
        counts = shares(length, weights, sources)
        return any(counts[source] >= lengths[source] for source in sources)

    return _first_where(is_reached)


def _first_where(reached: Callable[[int], bool]) -> int:
    """Return the first length at which it is reached.

    Args:
        reached: Once true, it stays so.
    """
    most = 1
    while not reached(most):
        most *= 2
    return bisect_left(range(most), True, lo=most // 2, key=reached)
