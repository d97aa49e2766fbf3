"""torch's own collate functions, and whether the user has extended them."""

from __future__ import annotations

from torch.utils.data import default_collate, default_convert
from torch.utils.data._utils import collate

__all__ = ["default_collate", "default_convert", "is_extended"]

# By name, not by a look at the map: it may be extended before threadloader is imported.
_OWN = {
    collate.collate_tensor_fn,
    collate.collate_numpy_array_fn,
    collate.collate_numpy_scalar_fn,
    collate.collate_float_fn,
    collate.collate_int_fn,
    collate.collate_str_fn,
}
_ENTRIES = 7  # str and bytes share a function; a canary test tells when torch has more


def is_extended() -> bool:
    """Whether ``default_collate_fn_map`` was changed, as torch documents for types of one's own.

    Only torch's function knows then what a batch becomes.
    """
    functions = collate.default_collate_fn_map
    return len(functions) != _ENTRIES or not _OWN.issuperset(functions.values())
