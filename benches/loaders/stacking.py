"""Batches as one makes them by hand: stack each field of the samples."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

__all__ = ["load_batch", "stack"]


def load_batch(
    dataset: Any, indices: Sequence[int], collate: Callable[[Sequence[Any]], Any] | None = None
) -> Any:
    """Fetch the samples and make a batch of them.

    Args:
        dataset: What to load.
        indices: Of the batch's samples.
        collate: Makes the batch; None for `stack`.
    """
    return (collate or stack)([dataset[index] for index in indices])


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
