"""Datasets that the cases share."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Raises:
    """Stands for a sample that fails, each time with a new error: an old one keeps its frames."""

    make: Callable[[], BaseException]


class Endless:
    """A dataset without a length."""

    def __getitem__(self, index: int) -> int:
        return index


class Samples:
    """Given samples."""

    def __init__(self, samples: Sequence[Any]) -> None:
        self.samples = samples

    def __len__(self) -> int:
        return len(self.samples)

    def __getitem__(self, index: Any) -> Any:
        sample = self.samples[index]
        if isinstance(sample, Raises):
            raise sample.make()
        return sample


class WholeBatches(Samples):
    """The same with ``__getitems__``, whose result ``change`` makes of a list of samples."""

    def __init__(
        self, samples: Sequence[Any], change: Callable[[list[Any]], Any] = lambda samples: samples
    ) -> None:
        super().__init__(samples)
        self.change = change

    def __getitems__(self, indices: Any) -> Any:
        return self.change([self[index] for index in indices])
