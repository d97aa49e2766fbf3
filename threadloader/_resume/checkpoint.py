"""A state between two batches of a sampler or an iterable dataset, to go back to."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

__all__ = ["Checkpoint"]


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """What a sampler or an iterable was like between two batches, to go back to."""

    batches: int  # drawn or read before
    samples: int  # in them
    states: dict[str, Any]  # of the user's objects that have any, by role
    ended: bool = False  # whether nothing comes after: an object may be at its beginning again
    whole: bool = False  # whether a pass begins here, and none was broken off before
