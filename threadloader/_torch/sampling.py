"""The random state that torch's samplers draw from."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch.utils.data import (
    BatchSampler,
    RandomSampler,
    SequentialSampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

__all__ = [
    "BATCHING",
    "DRAWING",
    "SEEDED",
    "SEQUENTIAL",
    "default_generator",
    "draw_base_seed",
    "generator_state",
    "new_generator",
    "permutations",
    "permutes",
    "set_generator_state",
]

BATCHING: tuple[Any, ...] = (BatchSampler,)  # have a ``sampler``
DRAWING: tuple[Any, ...] = (  # have a ``generator``
    RandomSampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
)
SEEDED: tuple[Any, ...] = (RandomSampler,)  # without a generator, draw one number for it
SEQUENTIAL: tuple[Any, ...] = (SequentialSampler,)


def draw_base_seed(generator: Any) -> int:
    """Draw one 64-bit number, as DataLoader does for its workers before the sampler draws.

    It is drawn also where nobody uses it: the sampler's seed follows it in the random state.
    Source: ``_BaseDataLoaderIter.__init__`` in torch/utils/data/dataloader.py.
    """
    device = "cpu" if generator is None else generator.device  # not the default one
    drawn = torch.empty((), dtype=torch.int64, device=device).random_(generator=generator)
    return int(drawn.item())


def default_generator() -> Any:
    """Return the generator of the process, which operators draw from that are given none."""
    return torch.default_generator


def new_generator(seed: int) -> Any:
    """Return a generator for samplers, with a seed."""
    return torch.Generator().manual_seed(seed)


def generator_state(generator: Any) -> bytes:
    """Return the state of a generator; of the process's default one for None."""
    state = torch.get_rng_state() if generator is None else generator.get_state()
    return state.numpy().tobytes()


def set_generator_state(generator: Any, state: bytes) -> None:
    """Give a generator a state that `generator_state` returned.

    Raises:
        RuntimeError: It is the state of another kind of generator.
    """
    generator.set_state(torch.frombuffer(bytearray(state), dtype=torch.uint8))


def permutes(sampler: Any) -> bool:
    """Whether `permutations` yields the sampler's indices."""
    return type(sampler) is RandomSampler and not sampler.replacement


def permutations(sampler: RandomSampler) -> Iterator[NDArray[Any]]:
    """Yield the indices of a pass over a `RandomSampler`, as arrays.

    They are those that the sampler would yield, drawn at the same time.
    Source: ``RandomSampler.__iter__`` in torch/utils/data/sampler.py; compared with it by
    tests/conformance/test_array_datasets.py.
    """
    samples = len(sampler.data_source)
    generator = sampler.generator
    if generator is None:
        generator = new_generator(draw_base_seed(None))
    whole, rest = divmod(sampler.num_samples, samples)
    for _ in range(whole):
        yield torch.randperm(samples, generator=generator).numpy()
    yield torch.randperm(samples, generator=generator)[:rest].numpy()
