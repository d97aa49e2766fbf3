"""A loader's state: where it is in which epoch, and what decides the rest; versioned, JSON-able.

It holds no indices and no samples.  The states of the user's own objects are in it as their
``state_dict`` returns them, and the state of the user's generator.  All else is below 500 bytes.
"""

from __future__ import annotations

import copy
import zlib
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, TypeAlias

from threadloader import _torch
from threadloader._order.ranks import share_of
from threadloader._order.samplers import inner_sampler, known, length_of
from threadloader.errors import StateError

if TYPE_CHECKING:
    from threadloader._engine.settings import Settings

State: TypeAlias = "Mapping[str, Any]"  # of a loader, as its `state_dict` returns it

VERSION = 5
_VERSION_KEY, _ENTRIES_KEY = "threadloader", "entries"
_ADDED = ("_iterator_finished",)  # to a state, by others
_ENTRIES = 64
# Left out, as None is, to save bytes.
_DEFAULTS = {"drop_last": False, "torch": False, "isolate_rng": True}
_RANKS = ("rank", "world_size")  # of an iterable dataset, each of whose shares has a state


def fingerprint_of(settings: Settings) -> dict[str, Any]:
    """Return what has to be equal for a loader to go on from a state: types, lengths, sizes.

    Args:
        settings: Of the loader.
    """
    fingerprint: dict[str, Any] = {
        "torch": _torch.AVAILABLE,
        "dataset": _name_of(settings.dataset),
        "batch_size": settings.batch_size,
        "drop_last": settings.drop_last,
        "seed": settings.seed,
        "generator": None if settings.generator is None else _name_of(settings.generator),
        "isolate_rng": bool(settings.isolate_rng),
    }
    if not settings.iterable:
        index_sampler = settings.index_sampler
        inner = inner_sampler(index_sampler)
        fingerprint |= {
            "samples": length_of(settings.dataset),
            "subset": _digest_of(settings.dataset),
            "sampler": _name_of(inner),
            "sampler's contents": _digest_of(inner),
            "batch_sampler": _name_of(index_sampler),
            # The length of a user's sampler may depend on the epoch, which is not set yet.
            "batches": None if known(index_sampler) is None else length_of(index_sampler),
        }
    share = share_of(settings)
    if share is not None and settings.iterable:
        fingerprint |= {"rank": share.rank, "world_size": share.world_size}
    elif share is not None:  # its state counts units, whatever a batch has
        fingerprint |= {"batch_size": None, "batches": None, "sharded": True}
    return {name: it for name, it in fingerprint.items() if it != _DEFAULTS.get(name)}


def _digest_of(value: Any) -> int | None:
    """Return a number that follows from the contents of a subset or sampler of torch's.

    That is from a few evenly spaced entries: these are enough to tell two random splits apart.
    """
    name = _torch.CONTENTS.get(type(value))
    if name is None:
        return None
    contents = getattr(value, name)
    step = max(1, len(contents) // _ENTRIES)
    entries = [float(entry) for entry in contents[::step]]
    return zlib.crc32(repr(entries).encode())


def _name_of(value: object) -> str:
    """Return the name of a class; the user's classes may move from one module to another."""
    kind = type(value)
    package = kind.__module__.partition(".")[0]
    prefix = f"{package}." if package in ("torch", "numpy", "threadloader") else ""
    return prefix + kind.__qualname__


def make_state(parts: Mapping[str, Any], fingerprint: Mapping[str, Any]) -> dict[str, Any]:
    """Return the state of a loader.

    Args:
        parts: Of the epoch and of the dataset.
        fingerprint: Of the loader; see `fingerprint_of`.
    """
    state = {_VERSION_KEY: VERSION, "loader": dict(fingerprint), **parts}
    return state | {_ENTRIES_KEY: _entries(state)}


def _entries(value: Any) -> int:
    """Return how many entries the dicts within a state have."""
    if isinstance(value, Mapping):
        return len(value) + sum(_entries(part) for part in value.values())
    return sum(_entries(part) for part in value) if isinstance(value, (list, tuple)) else 0


def checked_state(
    state: Mapping[str, Any], fingerprint: Mapping[str, Any]
) -> dict[str, Any] | None:
    """Return a state that a loader can go on from, as one of its own; None for the beginning.

    Args:
        state: As ``state_dict`` returned it, perhaps of another loader; ``{}`` for the beginning.
        fingerprint: Of the loader that is to go on; see `fingerprint_of`.

    Raises:
        StateError: It is no state, or incomplete, of another version, or of another loader.
    """
    if state == {}:
        return None
    _check(state, fingerprint)
    return copy.deepcopy(dict(state))


def _check(state: Any, fingerprint: Mapping[str, Any]) -> None:
    """Raise the errors of `checked_state`."""
    version = state.get(_VERSION_KEY) if isinstance(state, Mapping) else None
    if type(version) is not int or version < 1:
        msg = f"this is no state of a ThreadLoader: it has no version under {_VERSION_KEY!r}"
        raise StateError(msg)
    if version != VERSION:
        msg = (
            f"the state has version {version}, saved by another release of threadloader: this one "
            f"reads version {VERSION}"
        )
        raise StateError(msg)
    _check_entries(state)
    saved, fingerprint = _comparable(state, fingerprint)
    different = [
        _difference(name, saved, fingerprint)
        for name in {**fingerprint, **saved}
        if saved.get(name) != fingerprint.get(name)
    ]
    if different:
        msg = f"the state is that of another loader: {'; '.join(different)}"
        raise StateError(msg)


def _comparable(
    state: Mapping[str, Any], fingerprint: Mapping[str, Any]
) -> tuple[Mapping[str, Any], Mapping[str, Any]]:
    """Return what a state has of its loader, and a loader's own, as far as they are to be equal."""
    saved = state["loader"]
    if fingerprint.get("sharded"):  # a state of one process that loads all is as good
        saved = {**saved, "sharded": True}
        saved.pop("batch_size", None)
        saved.pop("batches", None)
    if not state["begun"] and not any("mark" in lane for lane in state["lanes"]):
        # Each rank's share of an iterable dataset is whole.
        saved, fingerprint = _without_ranks(saved), _without_ranks(fingerprint)
    return saved, fingerprint


def _without_ranks(fingerprint: Mapping[str, Any]) -> dict[str, Any]:
    return {name: fingerprint[name] for name in fingerprint if name not in _RANKS}


def _check_entries(state: Mapping[str, Any]) -> None:
    """Refuse a state of which some entries are missing.

    torch.distributed.checkpoint loads only those keys of a dict that the loader's state has at that
    time, and says nothing of others.
    """
    entries = state.get(_ENTRIES_KEY)
    own = {name: part for name, part in state.items() if name not in (_ENTRIES_KEY, *_ADDED)}
    if entries != _entries(own):
        msg = (
            f"the state is incomplete or changed: it had {entries} entries, and has "
            f"{_entries(own)}.  For torch.distributed.checkpoint wrap the loader in "
            "threadloader.integrations.checkpoint.WholeState"
        )
        raise StateError(msg)


def _difference(name: str, saved: Mapping[str, Any], fingerprint: Mapping[str, Any]) -> str:
    """Return how an entry differs, by the name that the user knows it by: its argument's."""
    before, now = (part.get(name, _DEFAULTS.get(name)) for part in (saved, fingerprint))
    if name == "sharded":
        return "shard was given, and is not now: shard=(0, 1) loads all in one process"
    if name not in _RANKS:
        return f"{name} was {before!r} and is {now!r}"
    return (
        f"{name} in shard was {before!r} and is {now!r} (each rank's share of an iterable dataset "
        "has a state of its own: in the midst of an epoch as many ranks as before go on, each from "
        "its own; between two epochs any number)"
    )
