"""Datasets of what people have: arrays, images, shards, here or behind a URL.

Importing this package loads no decoder and no client of a remote store; the first sample does.
"""

from __future__ import annotations

from threadloader.datasets.arrays import ArrayDataset

__all__ = ["ArrayDataset"]
