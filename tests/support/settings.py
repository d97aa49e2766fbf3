"""Settings of no loader, for what is made of them by hand."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from threadloader._order.tickets import TicketSize
from threadloader._settings import Settings
from threadloader._tuning.tuner import Tuner

__all__ = ["settings_of"]

_ARGUMENTS = {
    "batch_size": 2,
    "batch_sampler": None,
    "collate_fn": None,
    "dataset_copy": "auto",
    "device_prefetch": 2,
    "drop_last": False,
    "generator": None,
    "in_order": True,
    "isolate_rng": True,
    "max_skipped": None,
    "max_threads": 256,
    "memory_budget": None,
    "num_workers": 0,
    "on_error": "raise",
    "output": "numpy",
    "persistent_workers": False,
    "prefetch": None,
    "prefetch_factor": None,
    "sampler": None,
    "seed": None,
    "shard": None,
    "snapshot_every_n_steps": 1,
    "timeout": 0,
    "transform": None,
    "uneven": "pad",
    "worker_init_fn": None,
}
_DERIVED = {
    "device": None,
    "iterable": False,
    "move": None,
    "name": "tl",
    "pinned": False,
    "reported_length": None,
    "tunes_threads": False,
    "unsharded": False,
    "whole_batches": False,
}


def settings_of(dataset: Any, **given: Any) -> Settings:
    """Return settings with the defaults of most arguments; but batches of 2, without workers."""
    arguments = _ARGUMENTS | {name: given[name] for name in given if name in _ARGUMENTS}
    derived = _DERIVED | {name: given[name] for name in given if name not in _ARGUMENTS}
    loader = SimpleNamespace(dataset=dataset, **arguments)
    return Settings.of(loader, arguments, **derived, ticket_size=TicketSize(), tuner=Tuner())
