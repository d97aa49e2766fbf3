"""Ragged text: words become numbers in Python, and the rows of a batch are padded."""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING
from zlib import crc32

import numpy as np

from benches.workloads.catalog import Dataset

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

__all__ = ["Text", "pad_rows"]


class Text(Dataset):
    """Texts of 20 to 120 words, hashed to numbers: about 20 microseconds a sample.

    No vocabulary: a large dict that threads share is a matter of its own.

    Args:
        length: Samples; some texts come several times.
    """

    DISTINCT = 4096
    WORDS = 32_000  # numbers from 1 on; 0 is padding

    def __init__(self, length: int) -> None:
        super().__init__(length)
        rng = Random(0)
        words = ["".join(rng.choices("abcdefghij", k=rng.randint(2, 9))) for _ in range(2000)]
        self._texts = [
            " ".join(rng.choices(words, k=rng.randint(20, 120))) for _ in range(self.DISTINCT)
        ]

    def __getitem__(self, index: int) -> tuple[NDArray[np.int64], int]:
        """Return the words' numbers, (words,), and the label."""
        words = self._texts[index % self.DISTINCT].split()
        numbers = [crc32(word.encode()) % (self.WORDS - 1) + 1 for word in words]
        return np.array(numbers, np.int64), index % 100


def pad_rows(
    samples: Sequence[tuple[NDArray[np.int64], int]],
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Make a batch: rows padded with zeros to the longest, (samples, words), and the labels."""
    longest = max(len(numbers) for numbers, _ in samples)
    rows = np.zeros((len(samples), longest), np.int64)
    for row, (numbers, _) in zip(rows, samples, strict=True):
        row[: len(numbers)] = numbers
    return rows, np.array([label for _, label in samples], np.int64)
