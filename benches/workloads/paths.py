"""Paths of files, as lists of millions are kept: a loader's start must not depend on how many."""

from __future__ import annotations

__all__ = ["Paths"]


class Paths:
    """Strings, of which a sample takes the length.

    Args:
        length: Samples; the list has this many strings, or ``strings`` if that is more.
        strings: In the list; an epoch of fewer samples takes them from all over it.
    """

    def __init__(self, length: int, strings: int = 0) -> None:
        self._length = length
        name = "train/images/n%012d.JPEG"
        self._paths = list(map(name.__mod__, range(max(strings, length))))
        self._step = len(self._paths) // length

    def __len__(self) -> int:
        """Return the number of samples."""
        return self._length

    def __getitem__(self, index: int) -> tuple[int, int]:
        """Return the length of the path, and its label."""
        return len(self._paths[index * self._step]), index % 100
