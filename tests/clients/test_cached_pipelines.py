"""Pipelines of other libraries, cut in two by a `Cached`: batches are those of the whole one."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from threadloader import ThreadLoader
from threadloader.datasets import Cached


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    (tmp_path / "photos" / "cats").mkdir(parents=True)
    for number in range(12):
        pixels = np.random.default_rng(number).integers(0, 256, 40 * 50 * 3, np.uint8)
        path = tmp_path / "photos" / "cats" / f"{number}.ppm"
        path.write_bytes(b"P6 50 40 255\n" + pixels.tobytes())
    return tmp_path / "photos"


def folder(photos: Path, fixed: Any, rest: Any) -> tuple[Any, Any, Any]:
    """Return a dataset with all transforms, one with those that are not random, and the others."""
    import torchvision  # noqa: PLC0415  # what is tested

    whole = torchvision.datasets.ImageFolder(photos, lambda image: rest(fixed(image)))
    part = torchvision.datasets.ImageFolder(photos, fixed)
    return whole, part, lambda sample: (rest(sample[0]), sample[1])


def first_version(photos: Path) -> Any:
    t = pytest.importorskip("torchvision.transforms")
    steps = [t.RandomCrop(24), t.RandomHorizontalFlip(), t.ToTensor()]
    rest = t.Compose([*steps, t.Normalize([0.5], [0.5], inplace=True)])
    return folder(photos, t.Resize(32), rest)


def second_version(photos: Path) -> Any:
    t = pytest.importorskip("torchvision.transforms.v2")
    rest = t.Compose([t.RandomCrop(24), t.ColorJitter(1)])
    return folder(photos, t.Compose([t.ToImage(), t.Resize(32)]), rest)


def sequential(photos: Path) -> Any:
    torch, t = pytest.importorskip("torch"), pytest.importorskip("torchvision.transforms.v2")
    return folder(photos, torch.nn.Sequential(t.PILToTensor(), t.Resize(32)), t.RandomCrop(24))


def monai(_: Path) -> Any:
    t, data = pytest.importorskip("monai.transforms"), pytest.importorskip("monai.data")
    items = [{"image": np.random.default_rng(n).random((1, 40, 50))} for n in range(12)]
    fixed = data.Dataset(
        items, t.Compose([t.EnsureTyped(["image"]), t.Resized(["image"], (32, 40))])
    )
    crop = t.RandSpatialCropd(["image"], (24, 24), random_size=False)
    rest = t.Compose([crop, t.RandFlipd(["image"], 0.5)])
    # Random transforms of MONAI's have generators, whose seeds follow from the way to them.
    return data.Dataset(fixed, rest), fixed, rest


PIPELINES = (first_version, second_version, sequential, monai)


@pytest.mark.usefixtures("vision")
@pytest.mark.parametrize("make", PIPELINES)
def test_batches_are_those_of_the_whole_pipeline(make: Callable[[Path], Any], photos: Path) -> None:
    pytest.importorskip("PIL")

    def pixels(dataset: Any, threads: int) -> list[bytes]:
        def collated(samples: list[Any]) -> bytes:
            images = [each["image"] if isinstance(each, dict) else each[0] for each in samples]
            return b"".join(np.asarray(image).tobytes() for image in images)

        options: dict[str, Any] = {"shuffle": True, "seed": 3, "collate_fn": collated}
        with ThreadLoader(dataset, 4, threads=threads, **options) as loader:
            return [batch for _ in range(3) for batch in loader]

    wanted = pixels(make(photos)[0], 0)
    for threads in (0, 3):
        _, fixed, rest = make(photos)
        dataset = Cached(fixed, memory="10MiB", transform=rest)
        assert pixels(dataset, threads) == wanted
        assert dataset.cache_use().kept == 12
