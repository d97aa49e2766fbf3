"""What a thread draws from: one generator of each kind, and the draws that need none of them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from random import Random

    import numpy as np

__all__ = ["GeneratorStream", "Stream"]


class Stream(Protocol):
    """One generator of each kind, for a thread to draw from.

    Threads:
        all: one thread, the worker that owns it.
    """

    gauss_next: float | None  # the normal value that `random.gauss` has left over
    torch_words: memoryview  # of 32 bits, see `take_torch_words`

    def random(self) -> float:
        """Return what `random.random` does."""

    def getrandbits(self, k: int, /) -> int:
        """Return what `random.getrandbits` does."""

    @property
    def random_generator(self) -> Random:
        """The generator for all other functions of `random`; from now on for these two, too."""

    def seed_random(self, *args: Any, **kwargs: Any) -> None:
        """Do what `random.seed` does."""

    @property
    def legacy_generator(self) -> np.random.RandomState:
        """The generator for the functions of `numpy.random`."""

    @property
    def twister(self) -> np.random.RandomState:
        """The generator for them from now on: a Mersenne twister, whose state can be taken."""

    @property
    def unseeded_twister(self) -> np.random.RandomState:
        """The same for a function that seeds it, or sets its state."""

    @property
    def numpy_generator(self) -> np.random.Generator:
        """The generator that `sample_rng` returns."""

    @property
    def torch_generator(self) -> Any:
        """The generator for torch's operators."""

    def torch_generator_for(self, words: int) -> Any:
        """Return that generator, to draw at most so many words of 32 bits from."""

    def take_torch_words(self, count: int) -> int:
        """Draw words of 32 bits as that generator would.

        Returns:
            The place in ``torch_words`` where they begin; -1 if they are to be drawn from the
            generator.
        """

    def seed(self) -> int:
        """Return 63 bits, to seed a generator of another library with."""

    def initial_seed(self) -> int | None:
        """Return the result of ``torch.initial_seed``; None for its result without a stream."""


class GeneratorStream:
    """A stream whose draws all come from its generators: the base of such a `Stream`."""

    __slots__ = ()
    torch_words = memoryview(b"")

    @property
    def random_generator(self) -> Random:
        """See `Stream`."""
        raise NotImplementedError

    @property
    def legacy_generator(self) -> np.random.RandomState:
        """See `Stream`."""
        raise NotImplementedError

    @property
    def torch_generator(self) -> Any:
        """See `Stream`."""
        raise NotImplementedError

    def random(self) -> float:
        """See `Stream`."""
        return self.random_generator.random()

    def getrandbits(self, k: int, /) -> int:
        """See `Stream`."""
        return self.random_generator.getrandbits(k)

    @property
    def gauss_next(self) -> float | None:
        """See `Stream`."""
        return self.random_generator.gauss_next  # type: ignore[attr-defined,no-any-return]

    @gauss_next.setter
    def gauss_next(self, value: float | None) -> None:
        self.random_generator.gauss_next = value  # type: ignore[attr-defined]

    def seed_random(self, *args: Any, **kwargs: Any) -> None:
        """See `Stream`."""
        self.random_generator.seed(*args, **kwargs)

    @property
    def twister(self) -> np.random.RandomState:
        """See `Stream`."""
        return self.legacy_generator

    @property
    def unseeded_twister(self) -> np.random.RandomState:
        """See `Stream`."""
        return self.legacy_generator

    def torch_generator_for(self, words: int) -> Any:  # noqa: ARG002  # as a `Stream`
        """See `Stream`."""
        return self.torch_generator

    def take_torch_words(self, count: int) -> int:  # noqa: ARG002  # as a `Stream`
        """See `Stream`."""
        return -1
