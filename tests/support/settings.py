"""Settings of no loader, for what is made of them by hand."""

from __future__ import annotations

from typing import Any

from threadloader._order.tickets import TicketSize
from threadloader._settings import Settings
from threadloader._tuning.tuner import Tuner

__all__ = ["settings_of"]

_ARGUMENTS: dict[str, Any] = {
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
_DERIVED: dict[str, Any] = {
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
    values = {**_ARGUMENTS, **_DERIVED, **given, "dataset": dataset}
    return Settings(**values, ticket_size=TicketSize(), tuner=Tuner())
