"""Batches as one makes them by hand: stack each field of the samples."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    from benches.loaders.catalog import Setup

__all__ = ["load_batch", "stack"]


def load_batch(setup: Setup, indices: Sequence[int]) -> Any:
    """Fetch the samples and make a batch of them; of arrays, gather the rows at once.

    Args:
        setup: What is loaded, and how a batch is made of it.
        indices: Of the batch's samples.
    """
    dataset = setup.dataset
    if setup.source == "arrays":
        arrays = getattr(dataset, "arrays", None) or dataset.tensors
        return tuple(array[indices] for array in arrays)
    return (setup.collate or stack)([dataset[index] for index in indices])


def stack(samples: Sequence[Any]) -> Any:
    """Stack each field of the samples: tensors to a tensor, all else to a fresh array."""
    if isinstance(samples[0], tuple):
        return tuple(_stack(column) for column in zip(*samples, strict=True))
    return _stack(samples)


def _stack(column: Sequence[Any]) -> Any:
    """Stack one field."""
    torch = sys.modules.get("torch")  # no sample is a tensor before someone has imported it
    if torch is not None and isinstance(column[0], torch.Tensor):
        return torch.stack(column)
    return np.stack(column) if isinstance(column[0], np.ndarray) else np.array(column)
