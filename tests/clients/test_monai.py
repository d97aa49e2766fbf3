"""MONAI: a cache that the threads share, transforms, and tensors with metadata."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("monai")

import torch
from monai.data import CacheDataset, DataLoader, MetaTensor, list_data_collate
from monai.transforms import Compose, EnsureChannelFirstd, Lambdad, Resized, ToTensord
from torch.utils.data import get_worker_info

from threadloader import ThreadLoader

ITEMS = [{"image": torch.full((8, 8), float(i)), "label": i} for i in range(10)]


def dataset(visits: list[bool], **options: Any) -> CacheDataset:
    """Return a cache whose last transform notes whether it runs in a worker."""

    class Noting(Lambdad):
        def __call__(self, data: Any) -> Any:
            visits.append(get_worker_info() is not None)
            return super().__call__(data)

    transform = Compose(
        [
            EnsureChannelFirstd("image", channel_dim="no_channel"),
            Resized("image", spatial_size=(4, 4)),
            ToTensord("image"),
            Noting("image", func=lambda image: image * 2),
        ]
    )
    return CacheDataset(ITEMS, transform, progress=False, num_workers=None, **options)


@pytest.mark.parametrize("collate_fn", [list_data_collate, None], ids=["monai", "default"])
@pytest.mark.parametrize("cache_rate", [1.0, 0.5])
def test_batches_are_the_same(collate_fn: Any, cache_rate: float) -> None:
    visits: list[bool] = []
    cached = dataset(visits, cache_rate=cache_rate)
    visits.clear()
    loader = ThreadLoader(cached, batch_size=4, threads=2, collate_fn=collate_fn)
    batches = list(loader)
    expected = list(DataLoader(dataset([], cache_rate=cache_rate), batch_size=4))
    assert len(batches) == len(expected)
    for batch, same in zip(batches, expected, strict=True):
        assert isinstance(batch["image"], MetaTensor)
        assert torch.equal(batch["image"], same["image"])
        assert torch.equal(batch["label"], same["label"])
    assert all(visits)
    assert bool(visits) == (cache_rate < 1)
