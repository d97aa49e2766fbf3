"""What libraries draw, also by seeds that users set on them: one result for any threads."""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np
import pytest

from threadloader import ThreadLoader

torch = pytest.importorskip("torch")

THREADS: list[dict[str, int]] = [{"threads": number} for number in (0, 1, 2, 7)]
THREADS.append({})
SIZE = 24


def digest(loader: Any) -> list[str]:
    """Return a hash for each of two epochs."""
    hashes = []
    for _ in range(2):
        made = hashlib.sha256()
        for batch in loader:
            for value in batch.values() if hasattr(batch, "values") else batch:
                made.update(np.ascontiguousarray(torch.as_tensor(value).numpy()).tobytes())
        hashes.append(made.hexdigest())
    return hashes


def assert_one_result(make: Any, **arguments: Any) -> list[str]:
    """Check that batches are the same with any number of threads, and in a second run."""

    def run(threads: dict[str, int]) -> list[str]:
        made = {name: value() for name, value in arguments.items()}
        torch.manual_seed(3)
        with ThreadLoader(make(), batch_size=4, shuffle=True, **made, **threads) as loader:
            return digest(loader)

    first, *others = (run(threads) for threads in (*THREADS, *THREADS[1:3]))
    assert all(other == first for other in others)
    assert first[0] != first[1]
    return first


class Augmented(torch.utils.data.Dataset[Any]):
    def __init__(self, transform: Any) -> None:
        self.transform = transform
        self.images = np.random.default_rng(0).integers(256, size=(SIZE, 32, 32, 3), dtype=np.uint8)

    def __len__(self) -> int:
        return SIZE

    def __getitem__(self, index: int) -> Any:
        return (self.transform(self.images[index]),)


@pytest.mark.usefixtures("vision")
@pytest.mark.parametrize("module", ["transforms", "transforms.v2"])
def test_transforms_of_torchvision_draw_what_the_sample_decides(module: str) -> None:
    t = pytest.importorskip(f"torchvision.{module}")
    compose = t.Compose(
        [
            *(t.RandomResizedCrop(24), t.RandomHorizontalFlip(), t.ColorJitter(0.4)),
            t.RandomChoice([t.RandomRotation(30), t.RandomVerticalFlip()]),
            t.RandomErasing(1, value="random"),
        ]
    )

    def augment(image: Any) -> Any:
        return compose(torch.from_numpy(image).permute(2, 0, 1) / 255)

    assert_one_result(lambda: Augmented(augment))


def _albumentations(seed: int | None) -> Any:
    a = pytest.importorskip("albumentations")
    steps = [a.HorizontalFlip(p=0.5), a.RandomBrightnessContrast(p=0.8), a.Rotate(p=0.8)]
    compose = a.Compose(steps)
    if seed is not None:
        compose.set_random_seed(seed)

    def apply(image: Any) -> Any:
        return compose(image=image)["image"]

    return Augmented(apply)


def _monai(seed: int | None) -> Any:
    transforms = pytest.importorskip("monai.transforms")
    compose = transforms.Compose(
        [
            transforms.EnsureChannelFirst(channel_dim=-1),
            transforms.RandFlip(prob=0.5, spatial_axis=0),
            transforms.RandGaussianNoise(prob=0.8),
            transforms.RandSpatialCrop((8, 8), random_size=False),
        ]
    )
    if seed is not None:
        compose.set_random_state(seed=seed)
    return Augmented(lambda image: compose(image.astype(np.float32)).as_tensor())


@pytest.mark.parametrize("make", [_albumentations, _monai])
def test_a_seed_of_the_user_s_counts_and_none_is_needed(make: Any) -> None:
    assert assert_one_result(lambda: make(7)) != assert_one_result(lambda: make(8))
    assert_one_result(lambda: make(None))
