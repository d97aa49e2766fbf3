"""The samples of an epoch are the same for any number of ranks and threads, and after any kills.

Ranks are simulated, one after the other.  A kill abandons their loaders at any step; others, of
any number, go on from the state that was saved last.
"""

from __future__ import annotations

import functools
import hashlib
import importlib.util
import json
import random
from collections.abc import Iterator
from typing import Any, Self

import numpy as np
import pytest
from support.orders import Drawing, Growing, Striding

from threadloader import ThreadLoader, TokenBatches
from threadloader.datasets import Mixture

HAS_TORCH = importlib.util.find_spec("torch") is not None
SAMPLES = 900
LENGTHS = np.arange(SAMPLES) * 37 % 191 + 10
KILLS = 48


def weighted() -> dict[str, Any]:
    data = pytest.importorskip("torch.utils.data")
    return {"sampler": data.WeightedRandomSampler([1 + n % 5 for n in range(SAMPLES)], SAMPLES)}


def by_cost() -> dict[str, Any]:
    return {"batch_sampler": TokenBatches(LENGTHS, 400, pool_size=300, seed=3)}


def mixed() -> dict[str, Any]:
    sources = {"many": (Drawing(600), 0.7), "few": (Drawing(100), 0.3)}
    return {"dataset": Mixture(sources, seed=2, stop="all", with_source=True)}


KINDS: dict[str, Any] = {
    "sequential": dict,
    "shuffled": lambda: {"shuffle": True},
    "keyed": lambda: {"shuffle": "keyed"},
    "weighted": weighted,
    "user's": lambda: {"sampler": Striding(SAMPLES)},
    "user's batches": lambda: {"batch_sampler": Growing(SAMPLES // 3, 5)},
    "by cost": by_cost,
    "mixed": mixed,
}
# On every build of Python.  A shuffled order is torch's, where there is torch.
HASHES = {
    "sequential": "964308f7530f3e8f",
    "shuffled": "37bbc9906c3ff98c" if HAS_TORCH else "52b5a9aa23b8d4fb",
    "keyed": "2953e565f4628ddb",
    "weighted": "25ee43f3bfa3bf8f",
    "user's": "a5fa857cacf65c57",
    "user's batches": "964308f7530f3e8f",
    "by cost": "fe7beb7195d3abec",
    "mixed": "04bca8257f408f20",
}
each_kind = pytest.mark.parametrize("kind", list(KINDS))


class Ranks:
    """Ranks that load together.

    Args:
        kind: Of order.
        world_size: How many there are.
        batch_size: Samples of each; not for batches by cost.
        threads: Of each.
        state: To go on from.
    """

    def __init__(
        self, kind: str, world_size: int, batch_size: int, threads: int, state: Any = None
    ) -> None:
        fixed: dict[str, Any] = {"seed": 5, "output": "numpy", "uneven": "short"}
        self.loaders = []
        for rank in range(world_size):
            options = {"dataset": Drawing(SAMPLES), **fixed, **KINDS[kind]()}
            if "batch_sampler" not in options:
                options["batch_size"] = batch_size
            loader: ThreadLoader[Any] = ThreadLoader(
                **options, shard=(rank, world_size), threads=threads
            )
            self.loaders.append(loader)
        if state is not None:
            for loader in self.loaders:
                loader.load_state_dict(json.loads(state))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for loader in self.loaders:
            loader.close()

    def steps(self, most: int | None = None) -> Iterator[tuple[list[str], str]]:
        """Yield the samples of each global batch, and the state after it, which all have."""
        iterators = [iter(loader) for loader in self.loaders]
        while most is None or most:
            shares = [next(iterator, None) for iterator in iterators]
            if shares[0] is None:
                return
            samples = [
                repr(sample)
                for share in shares
                if share is not None
                for sample in zip(*map(np.ndarray.tolist, _parts(share)), strict=True)
            ]
            states = {json.dumps(loader.state_dict()) for loader in self.loaders}
            assert len(states) == 1 or None in shares
            yield samples, json.dumps(self.loaders[0].state_dict())
            most = None if most is None else most - 1


def _parts(share: Any) -> list[np.ndarray[Any, Any]]:
    """Return the arrays of a batch, wherever they are nested."""
    if isinstance(share, np.ndarray):
        return [share]
    return [part for each in share for part in _parts(each)]


def hash_of(samples: list[str]) -> str:
    return hashlib.sha256("\n".join(sorted(samples)).encode()).hexdigest()[:16]


@functools.cache
def epoch_of(kind: str, world_size: int = 1, threads: int = 0) -> tuple[str, ...]:
    """Return the samples of an epoch, in their order."""
    with Ranks(kind, world_size, 8 // world_size, threads) as ranks:
        return tuple(sample for samples, _ in ranks.steps() for sample in samples)


@each_kind
def test_the_hash_of_an_epoch_is_the_same_for_any_ranks_threads_and_builds(kind: str) -> None:
    for world_size, threads in ((1, 3), (2, 0), (8, 3)):
        assert epoch_of(kind, world_size, threads) == epoch_of(kind)
    assert hash_of(list(epoch_of(kind))) == HASHES[kind]


@each_kind
def test_the_hash_of_an_epoch_is_the_same_after_any_kills(kind: str) -> None:
    rng = random.Random(kind)
    expected = epoch_of(kind)
    got: list[str] = []
    state = None
    for _ in range(-(-KILLS // len(KINDS))):
        ranks, threads = rng.choice([1, 2, 4, 8]), rng.choice([0, 3])
        saved_steps, lost_steps = rng.choice([0, 1, 1, 2]), rng.randrange(3)
        with Ranks(kind, ranks, rng.choice([1, 2]), threads, state) as life:
            for step, (samples, after) in enumerate(life.steps(saved_steps + lost_steps)):
                if step < saved_steps:
                    got += samples
                    state = after
                    assert len(after) < 500
    assert len(got) < len(expected)
    with Ranks(kind, rng.choice([1, 2, 4, 8]), 4, 3, state) as last:
        got += [sample for samples, _ in last.steps() for sample in samples]
        second = [sample for samples, _ in last.steps() for sample in samples]
    assert tuple(got) == expected
    assert hash_of(got) == HASHES[kind]
    with Ranks(kind, 1, 8, 0) as alone:
        first = [sample for samples, _ in alone.steps() for sample in samples]
        assert second == [sample for samples, _ in alone.steps() for sample in samples]
    assert sorted(first) != sorted(second)
