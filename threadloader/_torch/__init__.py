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
        CONTENTS,
        DataLoader,
        Dataset,
        Generator,
        IterableDataset,
        as_iterable_dataset,
        gives_whole_batches,
        has_getitem,
        is_dataset,
        is_module,
        is_subset,
        tensors_in,
    )
    from threadloader._torch.devices import empty_pinned, open_device, page_locked
    from threadloader._torch.pinning import can_pin, pinned
    from threadloader._torch.pipes import draw_shared_seed, prepare_pipe, unwrapped
    from threadloader._torch.random_state import KeyedGenerator, teach_random
    from threadloader._torch.ranks import rank_and_world
    from threadloader._torch.sampling import (
        BATCHING,
        DRAWING,
        SEEDED,
        SEQUENTIAL,
        draw_base_seed,
        generator_state,
        new_generator,
        permutations,
        permutes,
        set_generator_state,
    )
    from threadloader._torch.tensors import (
        Tensor,
        array_of,
        arrays_of,
        dense_nbytes,
        is_shared,
        tensor_of,
    )
    from threadloader._torch.threads import inherited_modes, use_one_thread
    from threadloader._torch.worker_info import (
        get_worker_info,
        make_worker_info,
        teach_worker_info,
    )
else:
    from threadloader._torch.absent import (
        BATCHING,
        CONTENTS,
        DRAWING,
        SEEDED,
        SEQUENTIAL,
        DataLoader,
        Dataset,
        Generator,
        IterableDataset,
        KeyedGenerator,
        Tensor,
        array_of,
        arrays_of,
        as_iterable_dataset,
        can_pin,
        default_collate,
        default_convert,
        dense_nbytes,
        draw_base_seed,
        draw_shared_seed,
        empty_pinned,
        generator_state,
        get_worker_info,
        gives_whole_batches,
        has_getitem,
        inherited_modes,
        is_dataset,
        is_extended,
        is_module,
        is_shared,
        is_subset,
        make_worker_info,
        new_generator,
        open_device,
        page_locked,
        permutations,
        permutes,
        pinned,
        prepare_pipe,
        rank_and_world,
        set_generator_state,
        teach_random,
        teach_worker_info,
        tensor_of,
        tensors_in,
        unwrapped,
        use_one_thread,
    )

__all__ = [
    "AVAILABLE",
    "BATCHING",
    "CONTENTS",
    "DRAWING",
    "SEEDED",
    "SEQUENTIAL",
    "DataLoader",
    "Dataset",
    "Generator",
    "IterableDataset",
    "KeyedGenerator",
    "Tensor",
    "array_of",
    "arrays_of",
    "as_iterable_dataset",
    "can_pin",
    "default_collate",
    "default_convert",
    "dense_nbytes",
    "draw_base_seed",
    "draw_shared_seed",
    "empty_pinned",
    "generator_state",
    "get_worker_info",
    "gives_whole_batches",
    "has_getitem",
    "inherited_modes",
    "is_dataset",
    "is_extended",
    "is_module",
    "is_shared",
    "is_subset",
    "make_worker_info",
    "new_generator",
    "open_device",
    "page_locked",
    "permutations",
    "permutes",
    "pinned",
    "prepare_pipe",
    "rank_and_world",
    "set_generator_state",
    "teach_random",
    "teach_worker_info",
    "tensor_of",
    "tensors_in",
    "unwrapped",
    "use_one_thread",
]
