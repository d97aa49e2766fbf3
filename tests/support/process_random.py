"""The process's random state, all of it: what a loader leaves alone."""

from __future__ import annotations

import importlib.util
import random
from typing import Any

import numpy as np

__all__ = ["HAS_TORCH", "random_states", "seeded_globally"]

HAS_TORCH = importlib.util.find_spec("torch") is not None


def random_states() -> list[Any]:
    """Return the states of Python, NumPy and torch, to be compared."""
    kind, words, *rest = np.random.get_state()  # noqa: NPY002  # what is compared
    told = [random.getstate(), kind, np.asarray(words).tolist(), rest]
    if HAS_TORCH:
        import torch  # noqa: PLC0415  # optional

        told.append(torch.get_rng_state().tolist())
    return told


def seeded_globally(seed: int) -> None:
    """Seed what decides order and streams where there is no ``seed=``."""
    random.seed()  # has no say in it
    if HAS_TORCH:
        import torch  # noqa: PLC0415  # optional

        torch.manual_seed(seed)
    else:
        np.random.seed(seed)  # noqa: NPY002  # the same
