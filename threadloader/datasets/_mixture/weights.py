"""Weights as the user gives them, and as whole numbers, so that shares of any length are exact."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

__all__ = ["by_weight", "checked_weight", "checked_weights", "shares", "whole_weights"]


def checked_weight(name: str, weight: Any) -> float:
    """Return a source's weight.

    Raises:
        TypeError: It is no number.
        ValueError: It is negative, infinite or NaN.
    """
    if isinstance(weight, bool | str | bytes) or not hasattr(weight, "__float__"):
        msg = f"the weight of {name!r} must be a number, but got {weight!r}"
        raise TypeError(msg)
    number: float = weight if type(weight) is int else float(weight)
    if not (math.isfinite(number) and number >= 0):
        msg = f"the weight of {name!r} must be 0 or more, and finite, but got {weight!r}"
        raise ValueError(msg)
    return number


def checked_weights(weights: Mapping[str, Any], names: Sequence[str]) -> tuple[float, ...]:
    """Return the weights of all sources, in the order of their names.

    Args:
        weights: By name.
        names: Of the sources.

    Raises:
        TypeError: A weight is no number.
        ValueError: A name is unknown or left out, a weight is negative, or all are 0.
    """
    unknown = [name for name in weights if name not in names]
    missing = [name for name in names if name not in weights]
    if unknown or missing:
        wrong = [f"there is no source {name!r}" for name in unknown]
        wrong += [f"source {name!r} has no weight" for name in missing]
        msg = f"weights must name all sources, which are {list(names)}: {', '.join(wrong)}"
        raise ValueError(msg)
    checked = tuple(checked_weight(name, weights[name]) for name in names)
    if not any(checked):
        msg = f"all weights are 0, of the sources {list(names)}: give one of them a weight"
        raise ValueError(msg)
    return checked


def whole_weights(weights: Iterable[float]) -> tuple[int, ...]:
    """Return whole numbers in exactly the proportions of ``weights``."""
    fractions = [Fraction(weight) for weight in weights]
    common = math.lcm(*(fraction.denominator for fraction in fractions))
    whole = [int(fraction * common) for fraction in fractions]
    divisor = math.gcd(*whole) or 1
    return tuple(number // divisor for number in whole)


def by_weight(weights: Sequence[int]) -> list[int]:
    """Return the numbers of the sources whose weight is not 0, by falling weight."""
    sources = [source for source, weight in enumerate(weights) if weight]
    return sorted(sources, key=lambda source: -weights[source])


def shares(length: int, weights: Sequence[int], order: Sequence[int]) -> list[int]:
    """Return how many of ``length`` turns each source has: with a greater length, never fewer.

    Each source in its turn takes its share of what is left, rounded.  Both its share and the rest
    can only grow with the length, by at most 1 a turn, so the same holds for all.  A share is off
    by less than 1/2 and what the rest was off, in proportion to the weight.  With the largest
    weights first that is less than 1 + ln(n) / 2 for n sources, whatever the length.

    Args:
        length: At least 0.
        weights: Whole numbers; see `whole_weights`.
        order: As `by_weight` returns it.
    """
    counts = [0] * len(weights)
    left, rest = length, sum(weights)
    for source in order:
        weight = weights[source]
        counts[source] = share = (2 * left * weight + rest) // (2 * rest)
        left -= share
        rest -= weight
    return counts
