"""Page-locked memory: pinning of a whole batch as torch does it, and torch's warnings."""

from __future__ import annotations

from typing import Any

import torch

from threadloader._torch.accelerators import pinned_tensor
from threadloader._torch.structures import mapped
from threadloader._warnings import warn_user

__all__ = ["can_pin", "pinned"]


def pinned(batch: Any) -> Any:
    """Return a batch in page-locked memory, of the structure that torch's ``pin_memory`` makes."""
    return mapped(batch, _pinned_leaf, "pin_memory")


def _pinned_leaf(leaf: Any) -> Any:
    if isinstance(leaf, torch.Tensor):
        return pinned_tensor(leaf)
    return leaf.pin_memory() if hasattr(leaf, "pin_memory") else leaf


def can_pin(device: str) -> bool:
    """Whether batches can be pinned for the current accelerator; a warning says why not.

    Args:
        device: The user's ``pin_memory_device``, which torch ignores.
    """
    if device:
        warn_user(
            "pin_memory_device is deprecated, the current accelerator will be used as the device,"
            f"ignore pin_memory_device='{device}'.",
        )
    accelerator = torch.accelerator.current_accelerator()
    if accelerator is None or not torch.accelerator.is_available():
        warn_user(
            "'pin_memory' argument is set as true but no accelerator is found, "
            "then device pinned memory won't be used.",
        )
        return False
    if accelerator.type == "mps":
        warn_user(
            "'pin_memory' argument is set as true but not supported on MPS now, "
            "device pinned memory won't be used.",
        )
        return False
    return True
