"""The one package that imports torch; without torch the same names answer for its absence.

`AVAILABLE` tells which it is.  Everything else has one meaning either way: `Tensor` is a type
that no object has where torch is missing, and the functions are then never reached.
"""

from __future__ import annotations

import importlib.util
from typing import TYPE_CHECKING

AVAILABLE = importlib.util.find_spec("torch") is not None

if TYPE_CHECKING or AVAILABLE:  # types are checked against torch's own
    from threadloader._torch.collation import default_collate, default_convert, is_extended
    from threadloader._torch.datasets import (
        DataLoader,
        Generator,
        IterableDataset,
        gives_whole_batches,
        is_dataset,
    )
    from threadloader._torch.sampling import draw_base_seed, make_batch_sampler, make_sampler
    from threadloader._torch.tensors import Tensor, array_of, arrays_of, tensor_of
    from threadloader._torch.threads import inherited_modes
else:
    from threadloader._torch.absent import (
        DataLoader,
        Generator,
        IterableDataset,
        Tensor,
        array_of,
        arrays_of,
        default_collate,
        default_convert,
        draw_base_seed,
        gives_whole_batches,
        inherited_modes,
        is_dataset,
        is_extended,
        make_batch_sampler,
        make_sampler,
        tensor_of,
    )

__all__ = [
    "AVAILABLE",
    "DataLoader",
    "Generator",
    "IterableDataset",
    "Tensor",
    "array_of",
    "arrays_of",
    "default_collate",
    "default_convert",
    "draw_base_seed",
    "gives_whole_batches",
    "inherited_modes",
    "is_dataset",
    "is_extended",
    "make_batch_sampler",
    "make_sampler",
    "tensor_of",
]
