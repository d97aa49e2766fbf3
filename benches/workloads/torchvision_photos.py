"""Photos with torchvision's usual augmentation, by either of its two generations of transforms.

What is drawn is small beside decoding: this is what training on photos costs most people.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, Literal
from unittest.mock import patch

import torch
from PIL import Image

from benches.workloads.catalog import Dataset
from benches.workloads.photo_files import photo_files

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["TorchvisionPhotos"]

MEAN, DEVIATION = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)  # of ImageNet


class TorchvisionPhotos(Dataset):
    """Photos of 224x224: random crop, flip, jitter of the colours, normalised.

    Args:
        length: Samples; the files are repeated to reach it.
        generation: ``"v1"`` is ``torchvision.transforms``, ``"v2"`` its successor.
    """

    def __init__(self, length: int, generation: Literal["v1", "v2"]) -> None:
        super().__init__(length)
        self._paths = [str(path) for path in photo_files()]
        self._transform = _transform(generation)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        """Decode and augment the photo, (3, 224, 224), and return it with its label."""
        with Image.open(self._paths[index % len(self._paths)]) as file:
            return self._transform(file.convert("RGB")), index % 100


def _transform(generation: Literal["v1", "v2"]) -> Callable[[Any], torch.Tensor]:
    # torchvision registers fakes of its C++ operators.  Beside a torch of another build they are
    # not there, and the import would fail, although no transform of these calls one.
    with patch.object(torch.library, "register_fake", lambda *_, **__: lambda function: function):
        name = "torchvision.transforms" + (".v2" if generation == "v2" else "")
        transforms: Any = import_module(name)
    augment = [
        transforms.RandomResizedCrop(224),
        transforms.RandomHorizontalFlip(),
        transforms.ColorJitter(0.4, 0.4, 0.4),
    ]
    if generation == "v1":
        to_tensor = [transforms.ToTensor()]
    else:
        to_tensor = [transforms.ToImage(), transforms.ToDtype(torch.float32, scale=True)]
    normalise = transforms.Normalize(MEAN, DEVIATION)
    composed: Callable[[Any], torch.Tensor] = transforms.Compose([*augment, *to_tensor, normalise])
    return composed
