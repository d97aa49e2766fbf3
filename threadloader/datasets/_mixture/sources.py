"""The sources of a mixture, as the user gives them: names, datasets and weights."""

from __future__ import annotations

from collections.abc import Mapping, Sized
from typing import TYPE_CHECKING, Any, NamedTuple

from threadloader import _torch
from threadloader.datasets._mixture.weights import checked_weight, checked_weights

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["Sources", "check_not_empty", "is_map_style", "length_of", "tagged"]


class Sources(NamedTuple):
    """The sources, numbered in the order in which they were given."""

    names: tuple[str, ...]
    datasets: list[Any]
    weights: tuple[float, ...]

    @classmethod
    def of(cls, sources: Any) -> Sources:
        """Check the sources that the user gave.

        Raises:
            TypeError: They are no dict of pairs.
            ValueError: There are none, a weight is negative or NaN, or all are 0.
        """
        if not isinstance(sources, Mapping):
            msg = f"a mixture takes a dict {{name: (dataset, weight)}}, but got {sources!r}"
            raise TypeError(msg)
        if not sources:
            msg = "a mixture needs at least one source: {name: (dataset, weight)}"
            raise ValueError(msg)
        datasets, weights = [], {}
        for name, pair in sources.items():
            if not isinstance(name, str):
                msg = f"the name of a source must be a string, but got {name!r}"
                raise TypeError(msg)
            if not (isinstance(pair, tuple | list) and len(pair) == 2):
                msg = f"source {name!r} must be a pair (dataset, weight), but got {pair!r}"
                raise TypeError(msg)
            dataset, weight = pair
            weights[name] = checked_weight(name, weight)
            datasets.append(dataset)
        names = tuple(weights)
        return cls(names, datasets, checked_weights(weights, names))


def is_map_style(name: str, dataset: Any) -> bool:
    """Whether a source is asked for samples by their index; else it is an iterable.

    Raises:
        TypeError: It is neither.
    """
    if isinstance(dataset, _torch.IterableDataset):
        return False
    if not isinstance(dataset, type):
        if _torch.has_getitem(dataset):
            return True
        if hasattr(dataset, "__iter__"):
            return False
    msg = f"source {name!r} is no dataset: {dataset!r} has neither samples by index nor __iter__"
    raise TypeError(msg)


def length_of(name: str, dataset: Any) -> int:
    """Return the length of a map-style source.

    Raises:
        TypeError: It has none.
    """
    if not isinstance(dataset, Sized):
        msg = f"source {name!r} needs a __len__, and {type(dataset).__name__} has none"
        raise TypeError(msg)
    return len(dataset)


def check_not_empty(
    names: Sequence[str], lengths: Sequence[int | None], weights: Sequence[float]
) -> None:
    """Refuse a source that has a weight and no samples.

    Args:
        names: Of the sources.
        lengths: Their numbers of samples; None where that is not known.
        weights: Of the sources.
    """
    for name, length, weight in zip(names, lengths, weights, strict=True):
        if weight and length == 0:
            msg = f"source {name!r} has a weight of {weight}, and no samples"
            raise ValueError(msg)


def tagged(sample: Any, number: int, with_source: bool | str) -> Any:
    """Return a sample with the number of its source.

    Raises:
        TypeError: The number is to be an entry of the sample, which is no dict.
    """
    if with_source is True:
        return sample, number
    if not isinstance(sample, Mapping):
        msg = (
            f"with_source={with_source!r} adds an entry to samples that are dicts, and this one is "
            f"a {type(sample).__name__}: with_source=True gives pairs of a sample and its source"
        )
        raise TypeError(msg)
    return {**sample, with_source: number}
