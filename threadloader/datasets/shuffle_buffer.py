"""A shuffle buffer, and how it is known again without keeping what was in it.

Which item is drawn depends on the random numbers and on how many items there were, never on the
items.  So the numbers of the items that a buffer holds after any number of draws are found by
drawing once more, from a buffer of numbers: a state need not have the items.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Generic, TypeVar

if TYPE_CHECKING:
    import random

__all__ = ["ShuffleBuffer", "replayed"]

T = TypeVar("T")


class ShuffleBuffer(Generic[T]):
    """Items, one of which is drawn at random.

    Args:
        size: Items to have before one is drawn, at least 1.
        rng: Draws.
        items: In it already.
    """

    __slots__ = ("_rng", "items", "size")

    def __init__(self, size: int, rng: random.Random, items: list[T] | None = None) -> None:
        self.size = size
        self.items: list[T] = [] if items is None else items
        self._rng = rng

    def draw(self) -> T:
        """Take an item out."""
        items = self.items
        if len(items) > 1:
            at = int(self._rng.random() * len(items))
            items[at], items[-1] = items[-1], items[at]
        return items.pop()


def replayed(size: int, rng: random.Random, put: int, drawn: int) -> list[int]:
    """Return the numbers of the items in a buffer, in the order in which it has them.

    Args:
        size: Of the buffer.
        rng: As it was when the buffer was empty; afterwards as it is now.
        put: Items that were put in; one was drawn only when the buffer was full, or no more came.
        drawn: Items that were drawn.
    """
    if size == 1:  # nothing is drawn at random
        return list(range(drawn, put))
    buffer: ShuffleBuffer[int] = ShuffleBuffer(size, rng)
    items, number = buffer.items, 0
    for _ in range(drawn):
        while len(items) < size and number < put:
            items.append(number)
            number += 1
        buffer.draw()
    items.extend(range(number, put))
    return items
