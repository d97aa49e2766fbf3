"""torch's own collate functions, and whether the user has extended them."""

from __future__ import annotations

from torch.utils.data import default_collate, default_convert
from torch.utils.data._utils.collate import default_collate_fn_map

__all__ = ["default_collate", "default_convert", "is_extended"]

_ORIGINAL = dict(default_collate_fn_map)


def is_extended() -> bool:
    """Whether ``default_collate_fn_map`` was changed, as torch documents for own types.

    Only torch's function knows then what a batch becomes.
    """
    return default_collate_fn_map != _ORIGINAL
