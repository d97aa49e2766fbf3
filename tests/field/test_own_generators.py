"""A generator that an object carries gives each sample its own numbers, and heeds its seed."""

from __future__ import annotations

import functools
import random
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import pytest
from support.streams import Rows

from threadloader import ThreadLoader

SIZE = 24
THREADS: list[dict[str, int]] = [{"threads": number} for number in (0, 1, 2, 7)]
THREADS.append({})


class Draws:
    """Draws from a generator of its own."""

    def __init__(self, generator: Any, draw: Callable[[Any], int]) -> None:
        self.generator = generator
        self.draw = draw

    def __call__(self, _: Any) -> int:
        return self.draw(self.generator) + self.draw(self.generator)


def of_python(seed: int) -> Draws:
    return Draws(random.Random(seed), lambda generator: generator.getrandbits(40))


def of_numpy(seed: int) -> Draws:
    return Draws(np.random.default_rng(seed), lambda generator: int(generator.integers(1 << 40)))


def of_philox(seed: int) -> Draws:
    generator = np.random.Generator(np.random.Philox(seed))
    return Draws(generator, lambda generator: int(generator.integers(1 << 40)))


def of_legacy(seed: int) -> Draws:
    return Draws(np.random.RandomState(seed), lambda generator: int(generator.randint(1 << 31)))


def of_torch(seed: int) -> Draws:
    torch = pytest.importorskip("torch")
    generator = torch.Generator().manual_seed(seed)
    return Draws(generator, lambda generator: int(torch.randint(1 << 40, (), generator=generator)))


KINDS = [of_python, of_numpy, of_philox, of_legacy, of_torch]


class Sampled:
    """A dataset with a transform."""

    def __init__(self, transform: Callable[[Any], Any]) -> None:
        self.transform = transform

    def __len__(self) -> int:
        return SIZE

    def __getitem__(self, index: int) -> Any:
        return index, self.transform(index)


class Whole(Sampled):
    def __getitems__(self, indices: list[int]) -> list[Any]:
        return [self[index] for index in indices]


def drawn(loader: Iterable[Any]) -> list[int]:
    return [int(number) for batch in loader for number in batch[1]]


def epochs(dataset: Any, *, number: int = 2, **arguments: Any) -> list[list[int]]:
    with ThreadLoader(dataset, 4, **{"seed": 5, **arguments}) as loader:
        return [drawn(loader) for _ in range(number)]


@pytest.mark.parametrize("kind", KINDS)
def test_numbers_are_those_of_the_seeds_with_any_threads_and_the_users_generator_stays(
    kind: Any,
) -> None:
    for dataset in (Sampled, Whole):
        transforms = [kind(1) for _ in THREADS]
        first, *others = (
            epochs(dataset(transform), **threads)
            for transform, threads in zip(transforms, THREADS, strict=True)
        )
        assert all(other == first for other in others)
        assert first[0] != first[1]
        assert dataset is Whole or len({*first[0], *first[1]}) == 2 * SIZE
        assert len({transform(0) for transform in (*transforms, kind(1))}) == 1
        assert first != epochs(dataset(kind(2)), threads=2) != epochs(dataset(kind(1)), seed=6)
        assert first != epochs(dataset(kind(1)), threads=0, seed=6)


nobody_can_tell = pytest.mark.skipif(np.__version__ < "2", reason="nobody can tell")


@pytest.mark.parametrize(
    "make",
    [np.random.default_rng, pytest.param(np.random.RandomState, marks=nobody_can_tell)],
    ids=["numpy", "legacy"],
)
def test_a_generator_that_nobody_seeded_follows_the_loader(make: Any) -> None:
    def loaded(threads: int) -> list[list[int]]:
        transform = Draws(make(), lambda generator: int(generator.permutation(1 << 16)[0]))
        return epochs(Sampled(transform), threads=threads)

    assert loaded(0) == loaded(1) == loaded(4)


class Randomizable:
    R = np.random.RandomState()

    def __call__(self, _: Any) -> int:
        return int(self.R.randint(1 << 31)) + int(self.R.randint(1 << 31))


class Two:
    def __init__(self) -> None:
        self.first = self.second = np.random.default_rng(3)

    def __call__(self, _: Any) -> int:
        assert self.first is self.second
        return int(self.first.integers(1 << 40)) - int(self.second.integers(1 << 40))


# It is found where a worker's own objects are: see tests/own/test_places.py.
WHERE: dict[str, Callable[[], Any]] = {
    "held by a partial": lambda: functools.partial(lambda it, index: it(index), of_numpy(1)),
    "on a class": Randomizable,
    "on two objects": Two,
}


@pytest.mark.parametrize("where", WHERE.values(), ids=WHERE)
def test_a_generator_is_found_wherever_it_is_and_stays_one(where: Callable[[], Any]) -> None:
    first, *others = (epochs(Sampled(where()), **threads) for threads in THREADS)
    assert all(other == first for other in others)
    assert len({0, *first[0]}) == SIZE + 1


def test_a_generator_that_worker_init_fn_makes_is_seeded_for_each_sample() -> None:
    def loaded(threads: int) -> list[list[int]]:
        transform = of_legacy(1)

        def prepare(number: int) -> None:
            transform.generator = np.random.RandomState(number)

        return epochs(Sampled(transform), threads=threads, worker_init_fn=prepare)

    assert loaded(1) == loaded(2) == loaded(5)


def test_a_transform_of_an_iterable_has_generators_of_its_own() -> None:
    def loaded(threads: int) -> list[list[int]]:
        draws = of_numpy(1)

        def transform(index: int) -> Any:
            return index, draws(index)

        with ThreadLoader(Rows(SIZE), 4, seed=5, threads=threads, transform=transform) as loader:
            return [drawn(loader) for _ in range(2)]

    first = loaded(0)
    assert first == loaded(2) == loaded(5)
    assert len({*first[0], *first[1]}) == 2 * SIZE
