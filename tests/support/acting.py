"""A dataset whose samples do what a test says: wait, fail, or let the test's clock go on."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["Acting"]


class Acting:
    """Some samples, for each of which a function is called first.

    Args:
        size: Samples.
        act: Called with the index.
        sample: Returns the sample of an index; by default the index.
    """

    def __init__(
        self, size: int, act: Callable[[int], object] = int, sample: Callable[[int], Any] = int
    ) -> None:
        self.size = size
        self.act = act
        self.sample = sample

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, index: int) -> Any:
        self.act(index)
        return self.sample(index)
