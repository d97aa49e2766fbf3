"""The state of a mixture: its epoch, its weights and their changes; what must be equal to go on."""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from threadloader.datasets._mixture.weights import checked_weights
from threadloader.errors import StateError

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from threadloader.datasets._mixture.plan import Changes, Mixing

__all__ = ["check_saved", "merged_changes", "saved_state"]

_VERSION = 1
# Left out of a state where they are these, to save bytes.
_DEFAULTS = {"seed": 0, "stop": "first", "length": None, "shuffle": True}


def saved_state(mixing: Mixing, epoch: int, changes: Changes) -> dict[str, Any]:
    """Return the state, JSON-able, in some 20 bytes for each source."""
    state: dict[str, Any] = {
        "mixture": _VERSION,
        "epoch": epoch,
        **{
            name: getattr(mixing, name)
            for name, default in _DEFAULTS.items()
            if getattr(mixing, name) != default
        },
        "sources": dict(zip(mixing.names, mixing.weights, strict=True)),
    }
    if mixing.lengths:
        state["lengths"] = _digest_of(mixing, mixing.names)
    if changes:
        state["changes"] = [[at, *weights] for at, weights in changes]
    return state


def check_saved(state: Any, mixing: Mixing) -> Mapping[str, Any]:
    """Return a state if the mixture can go on from it.

    The mixture may have more sources than the state, if they begin without a weight.

    Raises:
        StateError: It is no state of a mixture, or that of another one.
    """
    version = state.get("mixture") if isinstance(state, Mapping) else None
    if version != _VERSION:
        msg = (
            f"this is no state of a mixture, or one of a newer version: it has {version!r} under "
            f"'mixture', and {_VERSION} can be read"
        )
        raise StateError(msg)
    now = saved_state(mixing, 0, ())
    try:
        different = [
            f"{name} was {state.get(name, default)!r} and is {now.get(name, default)!r}"
            for name, default in _DEFAULTS.items()
            if state.get(name, default) != now.get(name, default)
        ]
        different += _different_sources(dict(state["sources"]), now["sources"])
        digest = state["lengths"] if mixing.lengths and not different else None
        if digest is not None and digest != _digest_of(mixing, state["sources"]):
            lengths = dict(zip(mixing.names, mixing.lengths, strict=True))
            different = [f"the lengths of the sources were others, and are {lengths}"]
        epoch = state["epoch"]
    except (KeyError, TypeError, ValueError) as error:
        msg = f"the state of the mixture is incomplete or changed: {error!r}"
        raise StateError(msg) from None
    if type(epoch) is not int or epoch < 0:
        msg = f"the state of the mixture is changed: its epoch is {epoch!r}"
        raise StateError(msg)
    if different:
        msg = f"the state is that of another mixture: {'; '.join(different)}"
        raise StateError(msg)
    return state  # type: ignore[no-any-return]


def _digest_of(mixing: Mixing, names: Iterable[str]) -> int:
    """Return a number that follows from the lengths of some sources."""
    lengths = dict(zip(mixing.names, mixing.lengths, strict=True))
    return zlib.crc32(repr([lengths[name] for name in names]).encode())


def _different_sources(saved: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    different = [f"source {name!r} is missing" for name in saved if name not in now]
    for name, weight in now.items():
        if name not in saved and weight:
            different.append(
                f"source {name!r} is new: give it a weight of 0, and another by set_weights()"
            )
        elif saved.get(name, 0) != weight:
            different.append(
                f"the weight of {name!r} was {saved[name]} and is {weight}: weights change by "
                "set_weights(), at a position"
            )
    return different


def merged_changes(state: Mapping[str, Any], own: Changes, names: Sequence[str]) -> Changes:
    """Return the changes of the weights in a state, and those of the mixture that come later.

    Raises:
        StateError: The mixture has another change than the state, which is not later.
    """
    zeros, sources = dict.fromkeys(names, 0), list(state["sources"])
    try:
        saved = tuple(
            (
                int(at),
                checked_weights({**zeros, **dict(zip(sources, weights, strict=True))}, names),
            )
            for at, *weights in state.get("changes", ())
        )
    except (KeyError, TypeError, ValueError) as error:
        msg = f"the state of the mixture has changes of the weights that can't be: {error}"
        raise StateError(msg) from None
    last = saved[-1][0] if saved else -1
    for change in own:
        if change[0] <= last and change not in saved:
            msg = (
                f"the weights change at position {change[0]}, and did not when the state was saved"
            )
            raise StateError(msg)
    return saved + tuple(change for change in own if change[0] > last)
