"""Where batches start in samples that are sorted by length: of about one cost, and in groups.

Greedy cutting from the longest sample on takes the fewest batches; each is as large as the limit
allows, but for the last one and for what whole samples leave over.  Lowering the limit for some
batches, as far as they stay as many, makes them cost the same.
"""

from __future__ import annotations

__all__ = ["EVENED", "batch_starts", "group_bounds", "make_even", "middle_group"]

EVENED = 8  # batches that are made to cost the same, where they are in no groups
_HALVINGS = 6  # of what the limit is lowered by: to a 64th of it


def middle_group(batches: int, first: int, size: int) -> int:
    """Return where the group begins that completes that of the pool before; see `group_bounds`."""
    return (batches - first - (batches - first) % size) // (2 * size) * size


def group_bounds(batches: int, first: int, size: int) -> list[int]:
    """Return where the groups of a pool's batches begin, which are sorted by length, and the end.

    Two groups are not whole: one completes the last group of the pool before, and one is completed
    by the next pool.  They are taken from the middle, where the batches of two pools differ least.
    They may be empty.

    Args:
        batches: Number of batches.
        first: Batches that complete the group of the pool before.
        size: Batches in a group.
    """
    middle, last = middle_group(batches, first, size), (batches - first) % size
    whole = [*range(0, middle, size), middle, middle + first]
    return [*whole, *range(middle + first + last, batches, size), batches]


def make_even(
    starts: list[int],
    begin: int,
    stop: int,
    longest: list[float],
    max_tokens: float,
    most: int | None,
) -> None:
    """Change where some batches start, so that they have about one cost, and stay as many.

    Args:
        starts: Where each batch starts, as `batch_starts` found it; is changed.
        begin: First of the batches.
        stop: The batch after them.
        longest: See `batch_starts`, also for ``most``.
        max_tokens: Most that a batch costs.
        most: Most samples in a batch.
    """
    if stop - begin < 2:
        return
    start = starts[begin]
    part = longest[start : starts[stop] if stop < len(starts) else len(longest)]
    # Together they have less than one batch too little for ``max_tokens``.
    lower, upper = max_tokens * (1 - 1 / (stop - begin)), max_tokens
    for _ in range(_HALVINGS):
        limit = (lower + upper) / 2
        found = batch_starts(part, limit, most)
        if len(found) > stop - begin:
            lower = limit
        else:
            upper = limit
            if len(found) == stop - begin:
                starts[begin:stop] = [start + place for place in found]


def batch_starts(longest: list[float], limit: float, most: int | None) -> list[int]:
    """Return where batches start that are filled up to a limit, one after the other.

    Args:
        longest: The lengths, from the longest to the shortest.
        limit: Most that a batch costs; a longer sample has a batch of its own.
        most: Most samples in a batch; None for no limit.
    """
    starts, start = [], 0
    while start < len(longest):
        starts.append(start)
        rows = int(limit // longest[start]) or 1
        start += rows if most is None or rows < most else most
    return starts
