"""torchdata's StatefulDataLoader: torch's loader with a state, and its arguments."""

from __future__ import annotations

from functools import partial

from torchdata.stateful_dataloader import StatefulDataLoader

from benches.loaders import torch_dataloader

__all__ = ["Rival"]

Rival = partial(torch_dataloader.Rival, kind=StatefulDataLoader)
