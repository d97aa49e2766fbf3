"""A shuffle buffer, and how its contents are found again without saving the items.

Which item is drawn depends on the random numbers and on the number of items, never on the items.
So drawing again from a buffer of numbers finds which items a buffer holds after any number of
draws: a saved state needs no items.
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
        size: Items that must be there before one is drawn, at least 1.
        rng: Decides which item is drawn.
        items: Are in the buffer from the beginning.
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
    """Return the numbers of the items in a buffer, in the buffer's order.

    Args:
        size: Of the buffer.
        rng: In the state that it had while the buffer was empty; it gets the state of now.
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
