"""A pass over a known sampler, begun at any batch, and its order, which is all that is saved.

One seed decides an order, or the state of a generator.  Where the user gave no generator, these
come from the process's random state.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from threadloader import _torch
from threadloader._rng.seeds import (
    draw_seed,
    encoded_state,
    generator_with,
    restore_generator,
    state_of,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from threadloader._order.known_samplers import KnownSampler
    from threadloader._rng.seeds import EpochDraws

__all__ = ["KnownOrder", "KnownPass", "next_order"]


class KnownOrder:
    """The order of one pass over a known sampler: a seed, or the state of a generator.

    Args:
        sampler: The sampler.
        draws: The random draws of the epoch.
        saved: What `state` returned in the epoch that is resumed; None to draw it.
    """

    def __init__(
        self, sampler: KnownSampler, draws: EpochDraws, saved: Mapping[str, Any] | None
    ) -> None:
        own = _own_generator(sampler, draws.generator)
        # Whether it draws from the process's random state.
        self._draws_alone = sampler.draws and sampler.generator is None and not draws.seeded
        self._undecided = self._draws_alone and saved is None
        self._saved = saved
        self._start: Any = None  # the state of a generator at the beginning of the pass
        if own is not None:
            if saved is None:
                self._start = state_of(own)
            else:
                restore_generator(own, saved)
        self._sampler = sampler
        if draws.seeded:
            self._sampler = sampler.with_generator(draws.generator, draws.keyed_generator)

    def state(self) -> Mapping[str, Any] | None:
        """Return the order, JSON-able; None if there is nothing to save.  Draws it if need be."""
        self._decide()
        if self._saved is None and self._start is not None:
            self._saved = encoded_state(self._start)
        return self._saved

    def sampler(self) -> KnownSampler:
        """Return the sampler that has this order, perhaps a copy.  Draws the order if need be."""
        self._decide()
        order = self._saved
        if not self._draws_alone or order is None:
            return self._sampler
        seed = order.get("seed")
        generator = generator_with(order) if seed is None else _torch.new_generator(seed)
        return self._sampler.with_generator(generator, lambda: generator)

    def _decide(self) -> None:
        """Draw the seed that the sampler would draw from the process's random state.

        If more than a seed decides the order, keep that state instead.
        """
        if not self._undecided:
            return
        if self._sampler.draws_one_seed:
            self._saved = {"seed": draw_seed(None)}
        else:
            self._start = state_of(None)
        self._undecided = False  # last: Ctrl-C may come up before


class KnownPass:
    """One pass over a known sampler; see `SamplerPass`.

    Args:
        sampler: The sampler.
        batches: How many are left out at the beginning.
        order: Decides the order.
        arrays: Whether a batch's indices may be a range or an array.
    """

    known = True
    sharded = False
    first = 0
    epoch = None

    def __init__(
        self, sampler: KnownSampler, batches: int, order: KnownOrder, *, arrays: bool = False
    ) -> None:
        self.own = arrays and sampler.array_batches(batches) is not None
        self.batches = self.samples = batches
        if batches and sampler.batched:
            samples = batches * sampler.index_sampler.batch_size
            self.samples = min(samples, len(sampler.sampler))
        self.order = order
        self._drawing = _known_batches(order, batches, arrays=self.own)

    def __iter__(self) -> Iterator[Any]:
        return self._drawing

    def checkpoint(self, batches: int, samples: int, indices: Sequence[Any]) -> None:
        """Return None: the number of batches says all."""

    def length(self) -> None:
        """Return None: it was compared when the state was loaded."""


def _known_batches(order: KnownOrder, batches: int, *, arrays: bool) -> Iterator[Any]:
    """Yield the batches of a known sampler.

    A generator, so that the sampler draws when its first index is asked for, as in torch.
    """
    sampler = order.sampler()
    drawing = sampler.array_batches(batches) if arrays else None
    yield from sampler.starting_at(batches) if drawing is None else drawing


def next_order(sampler: KnownSampler, given: Any) -> dict[str, Any] | None:
    """Return the order of the next pass, JSON-able: the state of the sampler's own generator.

    Args:
        sampler: The sampler.
        given: The loader's generator, whose state is saved elsewhere.

    Returns:
        None if the sampler has no generator of its own.
    """
    own = _own_generator(sampler, given)
    return None if own is None else encoded_state(state_of(own))


def _own_generator(sampler: KnownSampler, given: Any) -> Any:
    """Return the generator of a sampler; None if it has none, or the one given."""
    own = sampler.generator
    return None if own is given else own
