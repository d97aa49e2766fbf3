"""Samples → batch: which way a loader's batches are made.

They go the direct path if no code of the user's makes them; otherwise a collate function makes each
of a list of its samples.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from threadloader import _torch
from threadloader._batch.direct_filling import DirectFilling, DirectPath
from threadloader._batch.filling import ListFilling
from threadloader._batch.memory import LeasedMemory
from threadloader._lifetime import importing
from threadloader._order.tickets import PrefetchDepth

if TYPE_CHECKING:
    from collections.abc import Callable

    from threadloader._batch.filling import Filling
    from threadloader._batch.layout import Layout, Output
    from threadloader._batch.memory import BatchMemory
    from threadloader._batch.ring import Ring


class Collation:
    """How one loader makes batches.

    Args:
        collate_fn: The user's function; None for the default, which torch's own stands for too.
        output: Whether batches consist of tensors or of arrays.
        batched: Whether samples are collated at all, or delivered one by one.
        ring: Where slots of ordinary memory come from.
        memory: Makes the memory of a batch of so many rows instead: page-locked; None for none.
        pin: Puts a batch that lies in no such memory into page-locked; None for nothing.

    Threads:
        open: planner, or the worker that has read the batch.
    """

    def __init__(
        self,
        collate_fn: Callable[[Any], Any] | None,
        *,
        output: Output,
        batched: bool,
        ring: Ring,
        memory: Callable[[Layout, int], BatchMemory] | None = None,
        pin: Callable[[Any], Any] | None = None,
    ) -> None:
        self._made_of = collate_fn, output
        self._batched = batched
        self.ring = ring
        self.depth = PrefetchDepth()  # follows the bytes of its batches
        self._tensors = output == "torch"
        collate: Callable[[Any], Any]
        if self._tensors:
            collate, convert_sample = _torch.default_collate, _torch.default_convert
        else:
            with importing():
                from threadloader._batch.numpy_collate import (  # noqa: PLC0415  # not with torch
                    numpy_collate,
                    numpy_convert,
                )

            collate, convert_sample = numpy_collate, numpy_convert
        default = _torch.default_collate if batched else _torch.default_convert
        ours = collate if batched else convert_sample
        if collate_fn is None or collate_fn is default:
            collate_fn = ours
        # Whether no code of the user's makes batches.
        self.direct = batched and collate_fn is ours
        self.function = collate_fn
        self._pin = pin
        convert: Callable[[Any], Any] = _torch.tensor_of if self._tensors else np.asarray
        memory = partial(LeasedMemory, ring, convert) if memory is None else memory
        self._direct_path = DirectPath(self.function, memory, pin)

    def is_made_of(self, collate_fn: Callable[[Any], Any] | None, output: Output) -> bool:
        """Whether these are the function and the output that it was made for."""
        return self._made_of[0] is collate_fn and self._made_of[1] == output

    def open(self, rows: int) -> Filling:
        """Start a batch of ``rows`` samples."""
        extended = self._tensors and _torch.is_extended()
        if self.direct and not extended and self._direct_path.admits_next():
            return DirectFilling(self._direct_path, rows)
        single = not self._batched
        return ListFilling(self.function, self._pin, default=self.direct, single=single)
