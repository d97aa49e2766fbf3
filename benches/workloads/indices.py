"""Samples made of their index alone, of which there may be any number."""

from __future__ import annotations

__all__ = ["Indices"]


class Indices:
    """A number and a label.

    Args:
        length: Samples.
    """

    def __init__(self, length: int) -> None:
        self._length = length

    def __len__(self) -> int:
        """Return the number of samples."""
        return self._length

    def __getitem__(self, index: int) -> tuple[int, int]:
        """Return the index, and its label."""
        return index, index % 100
