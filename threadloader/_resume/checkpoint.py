"""A checkpoint: the states of a sampler or an iterable dataset between two batches."""

from __future__ import annotations

from typing import Any, NamedTuple

__all__ = ["Checkpoint"]


class Checkpoint(NamedTuple):
    """The states of a sampler or an iterable between two batches, to go back to."""

    batches: int  # drawn or read before
    samples: int  # in these batches
    states: dict[str, Any]  # of the user's objects, by role; those without a state are left out
    ended: bool = False  # whether no batch comes after: an object may be at its beginning again
    between_passes: bool = False  # whether a pass begins here, and none was broken off before
