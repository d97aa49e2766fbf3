"""Cached in memory: what comes before the first random transform is kept, and nobody can tell."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from threadloader import ThreadLoader, sample_rng
from threadloader.datasets import Cached
from threadloader.errors import DataError

SAMPLES = 40
OPTIONS: dict[str, Any] = {"batch_size": 4, "shuffle": True, "seed": 3, "output": "numpy"}


class Compose:
    def __init__(self, *transforms: Callable[..., Any]) -> None:
        self.transforms = list(transforms)

    def __call__(self, *given: Any, **named: Any) -> Any:
        for transform in self.transforms:
            result = transform(*given, **named)
            given, named = ((), result) if named else (result if len(given) > 1 else (result,), {})
        return named or (given if len(given) > 1 else given[0])


# As torchvision's, whose transforms are told apart.
Known: Any = type("Compose", (Compose,), {"__module__": "torchvision.transforms.transforms"})


class Noisy:
    """Draws from a generator of its own."""

    def __init__(self) -> None:
        self.generator = np.random.default_rng(5)

    def __call__(self, image: Any) -> Any:
        return image + self.generator.normal(size=image.shape)


def halved(image: Any) -> Any:
    return image / 2


def flipped(image: Any) -> Any:
    return image[::-1] if random.random() < 0.5 else image


def shifted(image: Any) -> Any:
    image += sample_rng().random()  # in place
    return image


def both(image: Any, label: Any) -> Any:
    return flipped(image), label


def named(image: Any, label: Any) -> Any:
    return {"image": shifted(image), "label": label}


class Images:
    def __init__(self, transform: Any, call: Callable[[Any, Any, int], Any]) -> None:
        self.transform, self.call, self.loaded = transform, call, list[int]()

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, index: int) -> Any:
        self.loaded.append(index)  # of all workers
        return self.call(self.transform, np.arange(6.0) + index, index)


# Datasets of torchvision's are known to have the pipeline's result as it is.
Images.__getitem__.__module__ = "torchvision.datasets.folder"


class Wrapper:
    def __init__(self, dataset: Any) -> None:
        self.dataset = dataset

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, index: int) -> Any:
        return self.dataset[index]


Wrapper.__getitem__.__module__ = "torchvision.datasets.folder"


def unpacked(transform: Any, image: Any, label: Any) -> Any:
    image, label = transform(image, label)
    return image, label


def one(transform: Any, image: Any, label: Any) -> Any:
    return transform(image), label


def changed(transform: Any, image: Any, label: Any) -> Any:
    result = transform(image)
    result += 1
    return result, label


WAYS: dict[str, Callable[[], Images]] = {
    "composed": lambda: Images(Known(halved, flipped, shifted), one),
    "of a class of one's own": lambda: Images(Compose(halved, flipped, shifted), one),
    "one function": lambda: Images(flipped, one),
    "a generator of its own": lambda: Images(Known(halved, Noisy(), flipped), one),
    "with the label": lambda: Images(Known(both, both), unpacked),
    "by names": lambda: Images(Known(named), lambda t, x, y: t(image=x, label=y)),
    "two views": lambda: Images(Known(halved, flipped), lambda t, x, y: [t(x), t(x), y]),
    "beside what it was given": lambda: Images(flipped, lambda t, x, y: (t(x), x, y)),
    "a dict": lambda: Images(
        Known(dict, lambda sample: sample | {"x": flipped(sample["x"])}),
        lambda t, x, y: t({"x": x, "y": y}),
    ),
    "nothing random": lambda: Images(Known(halved, halved), one),
}


def leaves(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: leaves(part) for key, part in value.items()}
    return [leaves(part) for part in value] if isinstance(value, (list, tuple)) else value.tolist()


def epochs(dataset: Any, count: int = 3, **options: Any) -> list[Any]:
    with ThreadLoader(dataset, **OPTIONS | options) as loader:
        return [leaves(batch) for _ in range(count) for batch in loader]


@pytest.mark.parametrize("way", WAYS)
def test_batches_are_those_without_a_cache_and_nothing_is_loaded_twice(way: str) -> None:
    wanted = epochs(Wrapper(WAYS[way]()), threads=0)
    for threads in (0, 1, 2, 7):
        source = WAYS[way]()
        dataset = Cached(Wrapper(source), memory="1MiB", checks=threads)
        assert epochs(dataset, threads=threads) == wanted
        assert set(source.loaded) == set(range(SAMPLES))
        # Before it is known which transform draws, each thread may load a sample in vain.
        assert len(source.loaded) <= SAMPLES + 2 * threads + 1


@pytest.mark.parametrize("rank", [0, 1])
def test_ranks_and_resumed_epochs_have_the_same_batches_too(rank: int) -> None:
    options: dict[str, Any] = OPTIONS | {"threads": 2, "shard": (rank, 2)}
    wanted = epochs(WAYS["composed"](), **options)
    dataset = Cached(WAYS["composed"](), memory="1MiB")
    assert epochs(dataset, **options) == wanted
    with ThreadLoader(dataset, **options) as loader:
        begun = [leaves(batch) for batch in itertools.islice(loader, 3)]
        state = loader.state_dict()
    with ThreadLoader(Cached(WAYS["composed"](), memory="1MiB"), **options) as loader:
        loader.load_state_dict(state)
        assert begun + [leaves(batch) for _ in range(3) for batch in loader] == wanted


class Clock:
    def __call__(self, image: Any) -> Any:
        return image + CLOCK[0]


CLOCK = [0.0]


@pytest.mark.parametrize("threads", [0, 2])
def test_a_transform_that_reads_a_global_ends_it_loudly(threads: int) -> None:
    def of(clock: float, dataset: Any) -> list[Any]:
        CLOCK[0] = clock
        return epochs(dataset, 1, threads=threads)

    dataset = Cached(Images(Known(Clock(), flipped), one), memory="1MiB")
    assert of(0, dataset) == of(0, Images(Known(Clock(), flipped), one))
    with pytest.warns(UserWarning, match=r"nothing is kept any more of Images, since sample \d+"):
        assert of(7, dataset) == of(7, Images(Compose(Clock(), flipped), one))
    assert of(9, dataset) == of(9, Images(Compose(Clock(), flipped), one))
    assert dataset.cache_use().kept == 0


def late(image: Any) -> Any:
    """Draw for one sample alone."""
    return flipped(image) if image[0] == 15 else image


@pytest.mark.parametrize("threads", [0, 2])
def test_a_transform_may_draw_for_some_samples_only(threads: int) -> None:
    options: dict[str, Any] = {"threads": threads, "shuffle": False}
    wanted = epochs(Images(Known(halved, late, flipped), one), **options)
    source = Images(Known(halved, late, flipped), one)
    assert epochs(Cached(source, memory="1MiB", checks=0), **options) == wanted
    assert len(source.loaded) <= SAMPLES + 2 * threads + 2


def test_other_transforms_than_before_end_it_loudly() -> None:
    source = Images(Known(halved, flipped), one)
    dataset = Cached(source, memory="1MiB")
    with ThreadLoader(dataset, **OPTIONS, threads=0) as loader:
        list(loader)
        source.transform = Known(flipped)
        with pytest.warns(UserWarning, match="other transforms than before"):
            found = [leaves(batch) for batch in loader]
    assert found == epochs(Images(Compose(flipped), one), 2, threads=0)[SAMPLES // 4 :]


def beside(transform: Any, image: Any, _: Any) -> Any:
    return transform(image), random.random()


REFUSED: dict[str, tuple[Any, Callable[[Any, Any, int], Any], str]] = {
    "beside the pipeline": (flipped, beside, "drew random numbers.* beside its transforms"),
    "a list, used in any way": (
        [flipped],
        lambda t, x, _: t[0](x),
        "drew random numbers, or seeded them, and",
    ),
    "another object": (flipped, lambda t, x, y: (t(x) + 1, y), "has not their result as it is"),
    "changed in place": (shifted, changed, "has not their result as it is"),
    "a number of it": (
        lambda image, _: (flipped(image), random.random()),
        unpacked,
        "has not their result as it is",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_random_samples_that_can_not_be_split_are_refused(case: str) -> None:
    transform, call, told = REFUSED[case]
    dataset = Cached(Images(transform, call), memory="1MiB")
    with pytest.raises(DataError, match=rf"sample \d+ of Images .*{told}"):
        epochs(dataset, threads=2)


def test_a_random_dataset_whose_code_is_not_known_is_refused() -> None:
    class Own(Images):
        def __getitem__(self, index: int) -> Any:
            return super().__getitem__(index)

    with pytest.raises(DataError, match=r"sample \d+ of Own drew random numbers"):
        epochs(Cached(Own(flipped, one), memory="1MiB"), threads=2)


class Carrying(Images):
    """Draws from a generator of its own, beside its pipeline."""

    def __init__(self) -> None:
        super().__init__(flipped, one)
        self.generator = np.random.default_rng(3)

    def __getitem__(self, index: int) -> Any:
        self.generator.random()
        return super().__getitem__(index)


@pytest.mark.parametrize("memory", ["1MiB", None])
def test_a_generator_that_the_dataset_has_counts_too(memory: Any, tmp_path: Path) -> None:
    place: dict[str, Any] = {"memory": memory} if memory else {"folder": tmp_path, "key": "a"}
    with pytest.raises(DataError, match="drew random numbers"):
        epochs(Cached(Carrying(), **place), threads=2)
