"""Sources that are functions: asked for the next items whenever there are none left.

An item is a sample, or a function without arguments that makes one.  One thread asks the source,
the others call the functions, a chunk of them at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from typing import Any

Source = Callable[[int], Sequence[Any]]


class SourceItems(Iterable[Any]):
    """The items of a source; each pass over them asks it anew.

    Args:
        source: Called with a number of items; returns about as many, or none at its end.
        size: That number.
    """

    def __init__(self, source: Source, size: int) -> None:
        self._source = source
        self._size = size

    def __iter__(self) -> Iterator[Any]:
        return _Asking(self._source, self._size)


class _Asking(Iterator[Any]):
    # A class and no generator, which would end with the first error of the source.
    def __init__(self, source: Source, size: int) -> None:
        self._source = source
        self._size = size
        self._items: Iterator[Any] = iter(())

    def __next__(self) -> Any:
        with suppress(StopIteration):
            return next(self._items)
        # A StopIteration of the source ends the pass as well.
        items: Any = self._source(self._size)
        if items is None:
            msg = "the source returned None; it ends by an empty list, or by StopIteration"
            raise TypeError(msg)
        self._items = iter(items)
        return next(self._items)


def sample_of(item: Any) -> Any:
    """Return an item's sample: what it returns if it can be called, else itself."""
    return item() if callable(item) else item
