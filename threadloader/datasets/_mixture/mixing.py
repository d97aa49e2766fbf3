"""What a mixture is made of: its sources, their weights, and where it ends; and its state."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, get_args

from threadloader._authors import IterableDataset
from threadloader.errors import StateError, checked_count

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence


Stop = Literal["first", "all", "once", "repeat"]

# Positions, each greater than the one before, and the weights of all sources from there on.
Changes = tuple[tuple[int, tuple[float, ...]], ...]

ENDLESS = 1 << 62  # the length of a mixture without an end: loaders count that far

_VERSION = 3  # of a state
_SETTINGS = ("seed", "stop", "length", "shuffle")


def taken_apart(sources: Any) -> tuple[tuple[str, ...], list[Any], dict[str, Any]]:
    """Take apart the sources that the user gave.

    Returns:
        Their names and datasets, in the order in which they were given; and their weights, which
        are not checked.

    Raises:
        TypeError: It is no dict of pairs, or empty.
    """
    if not (isinstance(sources, Mapping) and sources):
        msg = f"a mixture takes a dict {{name: (dataset, weight)}} of sources, but got {sources!r}"
        raise TypeError(msg)
    for name, pair in sources.items():
        if not (isinstance(name, str) and isinstance(pair, tuple | list) and len(pair) == 2):
            msg = f"a source is a string and a pair (dataset, weight), but got {name!r}: {pair!r}"
            raise TypeError(msg)
    weights = {name: weight for name, (_, weight) in sources.items()}
    return tuple(sources), [dataset for dataset, _ in sources.values()], weights


def is_map_style(name: str, dataset: Any) -> bool:
    """Whether a source is asked for samples by their index; else it is an iterable.

    Raises:
        TypeError: It is neither.
    """
    if isinstance(dataset, IterableDataset):
        return False
    if not isinstance(dataset, type):
        if hasattr(dataset, "__getitem__"):
            return True
        if hasattr(dataset, "__iter__"):
            return False
    msg = f"source {name!r} is no dataset: {dataset!r} has neither samples by index nor __iter__"
    raise TypeError(msg)


def checked_weights(
    weights: Mapping[str, Any], names: Sequence[str], lengths: Sequence[int | None] = ()
) -> tuple[float, ...]:
    """Return the weights of all sources, in the order of their names.

    Args:
        weights: By name.
        names: Of the sources.
        lengths: Their numbers of samples; None where that is not known.

    Raises:
        TypeError: A weight is no number.
        ValueError: A name is unknown or left out, a weight is negative, infinite or NaN, all are 0,
            or a source has a weight and no samples.
    """
    if set(weights) != set(names):
        msg = f"weights must name all sources, which are {list(names)}, but got {list(weights)}"
        raise ValueError(msg)
    checked = tuple(_checked_weight(name, weights[name]) for name in names)
    if not any(checked):
        msg = f"all weights are 0, of the sources {list(names)}: give one of them a weight"
        raise ValueError(msg)
    for name, length in zip(names, lengths, strict=False):
        if weights[name] and length == 0:
            msg = f"source {name!r} has a weight of {weights[name]}, and no samples"
            raise ValueError(msg)
    return checked


def _checked_weight(name: str, weight: Any) -> float:
    if isinstance(weight, bool | str | bytes) or not hasattr(weight, "__float__"):
        msg = f"the weight of {name!r} must be a number, but got {weight!r}"
        raise TypeError(msg)
    number: float = weight if type(weight) is int else float(weight)
    if not (math.isfinite(number) and number >= 0):
        msg = f"the weight of {name!r} must be 0 or more, and finite, but got {weight!r}"
        raise ValueError(msg)
    return number


def tagged(sample: Any, number: int, with_source: bool | str) -> Any:
    """Return a sample, with the number of its source where the user asked for it.

    Raises:
        TypeError: The number is to be an entry of the sample, which is no dict.
    """
    if with_source is False:
        return sample
    if with_source is True:
        return sample, number
    return {**sample, with_source: number}


@dataclass(frozen=True, slots=True)
class Mixing:
    """What decides all epochs of a mixture, besides changes of the weights.

    Raises:
        TypeError: An argument has a wrong type.
        ValueError: An argument is out of its range.
    """

    names: tuple[str, ...]
    lengths: tuple[int | None, ...]  # of the sources; None of one that is iterable
    weights: tuple[float, ...]
    seed: int
    stop: Stop
    length: int | None
    shuffle: bool

    def __post_init__(self) -> None:
        checked_count("seed", self.seed)
        if self.stop not in get_args(Stop):
            msg = (
                f"stop must be one of {', '.join(map(repr, get_args(Stop)))}, but got {self.stop!r}"
            )
            raise ValueError(msg)
        if self.length is not None:
            if self.stop != "repeat":
                msg = f"length={self.length} is for stop='repeat', and stop is {self.stop!r}"
                raise ValueError(msg)
            if not 0 < checked_count("length", self.length) < ENDLESS:
                msg = f"length must be from 1 to 2**62, but got {self.length}"
                raise ValueError(msg)

    def __str__(self) -> str:
        total = sum(self.weights)
        shares = zip(self.names, self.weights, strict=True)
        return ", ".join(f"{name} {weight / total:.2%}" for name, weight in shares)

    def changed(self, changes: Changes, weights: Mapping[str, Any], at: int) -> Changes:
        """Return changes of the weights with another one.

        Raises:
            TypeError: The position, or a weight, is no number.
            ValueError: The mixture ends with its sources, the position is negative, or as
                `checked_weights`.
        """
        if self.stop != "repeat":
            msg = (
                f"the end of a mixture with stop={self.stop!r} follows from its weights, so they "
                "can't change: use stop='repeat'"
            )
            raise ValueError(msg)
        at, to = checked_count("at", at), checked_weights(weights, self.names, self.lengths)
        return tuple(sorted([*(change for change in changes if change[0] != at), (at, to)]))

    def state(self, epoch: int, changes: Changes) -> dict[str, Any]:
        """Return a state, JSON-able, in some 30 bytes for each source."""
        return {
            "mixture": _VERSION,
            "epoch": epoch,
            **self._identity(self.names),
            "changes": [[at, dict(zip(self.names, each, strict=True))] for at, each in changes],
        }

    def restored(self, state: Any, own: Changes) -> tuple[int, Changes]:
        """Return the epoch of a state; and its changes of the weights, with later ones of ``own``.

        The mixture may have more sources than the state, if they begin without a weight.

        Raises:
            StateError: It is no state of a mixture, or that of another one.
        """
        if not isinstance(state, Mapping) or state.get("mixture") != _VERSION:
            msg = f"this is no state of a mixture, or one of another version than {_VERSION}"
            raise StateError(msg)
        none = dict.fromkeys(self.names, 0)
        try:
            sources = state["sources"]
            weighted = zip(self.names, self.weights, strict=True)
            known = [name for name, weight in weighted if name in sources or weight]
            different = [
                f"{name} was {state[name]!r} and is {value!r}"
                for name, value in self._identity(known).items()
                if state[name] != value
            ]
            epoch = checked_count("epoch", state["epoch"])
            changes = [] if different else state["changes"]
            saved = tuple((int(at), checked_weights(none | to, self.names)) for at, to in changes)
        except (KeyError, TypeError, ValueError) as error:
            msg = f"the state of the mixture is incomplete or changed: {error!r}"
            raise StateError(msg) from None
        if different:
            msg = (
                f"the state is that of another mixture: {'; '.join(different)} (a new source "
                "begins with a weight of 0; weights change by set_weights(), at a position)"
            )
            raise StateError(msg)
        last = saved[-1][0] if saved else -1
        for change in own:
            if change[0] <= last and change not in saved:
                msg = (
                    f"the weights change at position {change[0]}, and did not when the state was "
                    "saved"
                )
                raise StateError(msg)
        return epoch, saved + tuple(change for change in own if change[0] > last)

    def _identity(self, names: Sequence[str]) -> dict[str, Any]:
        """Return the settings, with weight and length of some sources."""
        pairs = zip(self.names, zip(self.weights, self.lengths, strict=True), strict=True)
        sources = {name: list(pair) for name, pair in pairs if name in names}
        return {**{name: getattr(self, name) for name in _SETTINGS}, "sources": sources}


def tell_epoch(datasets: Iterable[Any], epoch: int) -> int:
    """Return an epoch's checked number, which each source with a ``set_epoch`` is told.

    Raises:
        TypeError: It is no whole number.
        ValueError: It is negative.
    """
    epoch = checked_count("epoch", epoch)
    for dataset in datasets:
        if callable(getattr(dataset, "set_epoch", None)):
            dataset.set_epoch(epoch)
    return epoch
