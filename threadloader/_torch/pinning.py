"""Page-locked memory: torch's own pinning of a whole batch, and its warnings."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any

import torch
from torch.utils.data._utils.pin_memory import pin_memory

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["pinning"]


def pinning(device: str) -> Callable[[Any], Any] | None:
    """Return what pins a batch for the current accelerator, or None, with a warning, without one.

    Args:
        device: What the user gave for ``pin_memory_device``, which torch ignores.
    """
    if device:
        warnings.warn(
            "pin_memory_device is deprecated, the current accelerator will be used as the device,"
            f"ignore pin_memory_device='{device}'.",
            stacklevel=3,
        )
    accelerator = torch.accelerator.current_accelerator()
    if accelerator is None or not torch.accelerator.is_available():
        warnings.warn(
            "'pin_memory' argument is set as true but no accelerator is found, "
            "then device pinned memory won't be used.",
            stacklevel=3,
        )
        return None
    if accelerator.type == "mps":
        warnings.warn(
            "'pin_memory' argument is set as true but not supported on MPS now, "
            "device pinned memory won't be used.",
            stacklevel=3,
        )
        return None
    return pin_memory
