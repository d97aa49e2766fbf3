"""Samples that cost nothing: what is measured is the loader alone."""

from __future__ import annotations

__all__ = ["Empty"]


class Empty:
    """Numbers, each its own index.

    Args:
        length: Samples.
    """

    def __init__(self, length: int) -> None:
        self._length = length

    def __len__(self) -> int:
        """Return the number of samples."""
        return self._length

    def __getitem__(self, index: int) -> int:
        """Return the index."""
        return index
