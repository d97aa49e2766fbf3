"""What a thread draws from: one generator of each kind."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from random import Random

    import numpy as np

__all__ = ["Stream"]


class Stream(Protocol):
    """One generator of each kind, for a thread to draw from.

    Threads:
        all: one thread, the worker that owns it.
    """

    @property
    def random_generator(self) -> Random:
        """The generator for the functions of `random`."""

    @property
    def legacy_generator(self) -> np.random.RandomState:
        """The generator for the functions of `numpy.random`."""

    @property
    def numpy_generator(self) -> np.random.Generator:
        """The generator that `sample_rng` returns."""

    @property
    def torch_generator(self) -> Any:
        """The generator for torch's operators."""

    def seed(self) -> int:
        """Return 63 bits, to seed a generator of another library with."""

    def initial_seed(self) -> int | None:
        """Return the result of ``torch.initial_seed``; None for its result without a stream."""
