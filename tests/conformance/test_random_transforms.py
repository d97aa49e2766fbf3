"""Augmentations of torchvision and albumentations are the same for all numbers of threads."""

from __future__ import annotations

import random
import warnings
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
from support.patience import PATIENCE

from threadloader import ThreadLoader
from threadloader._rng.streams import sample_rng, sample_seed

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from support.patience import Spawn

    Transform = Callable[[Any], Any]

SIZE = 12  # images


@pytest.fixture(scope="module")
def vision() -> Iterator[Any]:
    """Import torchvision, whose operators a CPU build of torch may lack."""
    register = torch.library.register_fake

    def lenient(*given: Any, **named: Any) -> Any:
        decorate = register(*given, **named)

        def or_not(function: Any) -> Any:
            try:
                return decorate(function)
            except RuntimeError:  # there is no operator of this name
                return function

        return or_not

    torch.library.register_fake = lenient  # type: ignore[assignment]
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield pytest.importorskip("torchvision.transforms", exc_type=ImportError)
    finally:
        torch.library.register_fake = register


class Photos:
    """Generated images of 40 x 48, as ``kind`` makes them of an array."""

    def __init__(self, transform: Transform, kind: Callable[[Any], Any]) -> None:
        self.transform = transform
        self.kind = kind

    def __len__(self) -> int:
        return SIZE

    def __getitem__(self, index: int) -> Any:
        rows, columns = np.mgrid[:40, :48]
        levels = [rows * (index + 2), columns * 5, rows * columns + index]
        image = np.stack(levels, 2).astype(np.uint8)
        return np.asarray(self.transform(self.kind(image))).tolist()


def tensor(image: Any) -> torch.Tensor:
    return torch.from_numpy(image).permute(2, 0, 1).contiguous()


def pillow(image: Any) -> Any:
    return pytest.importorskip("PIL.Image").fromarray(image)


def epochs(dataset: Any, threads: int, **arguments: Any) -> list[Any]:
    torch.manual_seed(2)
    defaults: dict[str, Any] = {"batch_size": 5, "shuffle": True, "collate_fn": list}
    with ThreadLoader(dataset, threads=threads, **(defaults | arguments)) as loader:
        return [list(loader) for _ in range(2)]


def check(dataset: Any, spawn: Spawn, **arguments: Any) -> None:
    """Compare the numbers of threads; no two samples may be augmented alike."""
    expected = spawn(lambda: epochs(dataset, 0, **arguments)).result(PATIENCE)
    assert expected[0] != expected[1]
    for threads in (1, 2, 7):
        got = spawn(lambda n: epochs(dataset, n, **arguments), threads).result(PATIENCE)
        assert got == expected, threads


MAKE: dict[str, Callable[[Any], Transform]] = {
    "RandomResizedCrop": lambda t: t.RandomResizedCrop(16),
    "RandomCrop": lambda t: t.RandomCrop(16),
    "RandomHorizontalFlip": lambda t: t.RandomHorizontalFlip(),
    "ColorJitter": lambda t: t.ColorJitter(0.4, 0.4, 0.4, 0.1),
    "RandomRotation": lambda t: t.RandomRotation(30),
    "RandomAffine": lambda t: t.RandomAffine(30, (0.1, 0.1), (0.8, 1.2)),
    "RandomPerspective": lambda t: t.RandomPerspective(),
    "RandAugment": lambda t: t.RandAugment(),
    "TrivialAugmentWide": lambda t: t.TrivialAugmentWide(),
    "AutoAugment": lambda t: t.AutoAugment(),
    "RandomApply": lambda t: t.RandomApply([t.GaussianBlur(3)]),
    "RandomChoice": lambda t: t.RandomChoice([t.RandomCrop(16), t.RandomVerticalFlip()]),
    "RandomOrder": lambda t: t.RandomOrder([t.RandomGrayscale(0.5), t.RandomInvert()]),
    "Compose": lambda t: t.Compose(
        [t.RandomResizedCrop(24), t.RandomHorizontalFlip(), t.ColorJitter(0.4), t.RandAugment()]
    ),
}
OF_TENSORS: dict[str, Callable[[Any], Transform]] = {
    "RandomErasing": lambda t: t.RandomErasing(value=0),
    "RandomErasing with noise": lambda t: t.Compose(
        [lambda image: image / 255, t.RandomErasing(1, value="random")]
    ),
}


@pytest.mark.parametrize("version", ["v1", "v2"])
@pytest.mark.parametrize("case", [*MAKE, *OF_TENSORS])
def test_transforms_of_torchvision(case: str, version: str, vision: Any, spawn: Spawn) -> None:
    module = vision if version == "v1" else pytest.importorskip("torchvision.transforms.v2")
    for kind in (tensor, pillow) if case in MAKE else (tensor,):
        check(Photos((MAKE | OF_TENSORS)[case](module), kind), spawn)


def test_mixing_in_a_collate_function(vision: Any, spawn: Spawn) -> None:
    assert vision
    v2 = pytest.importorskip("torchvision.transforms.v2")
    mix = v2.RandomChoice([v2.MixUp(num_classes=3), v2.CutMix(num_classes=3)])

    def collate(samples: list[Any]) -> Any:
        images = torch.tensor(samples).float()
        return [part.tolist() for part in mix(images, torch.arange(len(samples)) % 3)]

    check(Photos(lambda image: image, tensor), spawn, collate_fn=collate)


def test_a_transform_of_an_iterable(vision: Any, spawn: Spawn) -> None:
    crop = vision.RandomResizedCrop(16)

    def transform(row: int) -> Any:
        return crop(torch.arange(40.0 * 40).view(1, 40, 40) + row).tolist()

    check(range(SIZE), spawn, shuffle=True, collate_fn=lambda rows: [transform(r) for r in rows])

    def run(threads: int) -> list[Any]:
        return epochs(Rows(), threads, transform=transform, shuffle=None)

    expected = spawn(run, 0).result(PATIENCE)
    for threads in (1, 2, 5):
        assert spawn(run, threads).result(PATIENCE) == expected


class Rows:
    def __iter__(self) -> Iterator[int]:
        return iter(range(SIZE))


def albumentation(seed: int | None) -> Any:
    """Return a pipeline of albumentations that is seeded once, or not at all."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        a = pytest.importorskip("albumentations", exc_type=ImportError)
        return a.Compose(
            [
                a.RandomResizedCrop(size=(16, 16)),
                a.HorizontalFlip(),
                a.ColorJitter(),
                a.GaussNoise(),
                a.CoarseDropout(),
            ],
            seed=seed,
        )


@pytest.mark.parametrize(
    ("copied", "seed", "modulus"), [("auto", None, 2**32), ("deep", 137, 2**32), ("auto", 1, 2**64)]
)
def test_albumentations_seeded_for_each_sample(
    copied: str, seed: int | None, modulus: int, spawn: Spawn
) -> None:
    class Augment:
        def __init__(self) -> None:
            self.pipeline = albumentation(seed)

        def __call__(self, image: Any) -> Any:
            self.pipeline.set_random_seed(sample_seed() % modulus)
            return self.pipeline(image=image)["image"]

    check(Photos(Augment(), lambda image: image), spawn, dataset_copy=copied)


def test_augmentations_written_by_hand(spawn: Spawn) -> None:
    def augment(image: Any) -> Any:
        if random.random() < 0.5:
            image = image[:, ::-1]
        top = np.random.randint(0, 20)  # noqa: NPY002  # as much code does
        image = image[top : top + 20] * sample_rng().uniform(0.5, 1)
        return image + torch.randn(image.shape).numpy()

    check(Photos(augment, lambda image: image), spawn)
