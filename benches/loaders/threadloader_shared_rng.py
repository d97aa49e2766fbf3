"""The package without random streams for each sample: the difference is what they cost."""

from __future__ import annotations

from functools import partial

from benches.loaders import threadloader

__all__ = ["Rival"]

Rival = partial(threadloader.Rival, isolate_rng=False)
