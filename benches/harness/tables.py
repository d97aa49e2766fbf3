"""Figures as text: the spread of some rounds, and tables for a terminal or a page."""

from __future__ import annotations

import statistics
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["Spread", "align", "markdown", "show_number", "show_ratio", "show_spread"]


@dataclass(frozen=True, slots=True)
class Spread:
    """A median with the extremes of the rounds that it is made of."""

    median: float
    low: float
    high: float

    @classmethod
    def of(cls, figures: Sequence[float]) -> Spread | None:
        """Return the spread of some figures, None without any."""
        if not figures:
            return None
        return cls(statistics.median(figures), min(figures), max(figures))


def align(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a table for a terminal: the first column to the left, all others to the right."""
    lines = [header, *rows]
    widths = [max(len(line[column]) for line in lines) for column in range(len(header))]
    text = []
    for line in lines:
        cells = [line[0].ljust(widths[0])]
        cells += [cell.rjust(width) for cell, width in zip(line[1:], widths[1:], strict=True)]
        text.append("  ".join(cells).rstrip())
    text.insert(1, "  ".join("-" * width for width in widths))
    return "\n".join(text)


def markdown(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a table for a page."""
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def show_number(value: float) -> str:
    """Return a number with three digits or more."""
    if abs(value) >= 1000:
        return f"{value:,.0f}"
    return f"{value:.3g}"


def show_spread(spread: Spread | None) -> str:
    """Return ``median (lowest to highest)``."""
    if spread is None:
        return "-"
    low, high = show_number(spread.low), show_number(spread.high)
    return f"{show_number(spread.median)} ({low} to {high})" if low != high else low


def show_ratio(spread: Spread | None, decimals: int = 2) -> str:
    """Return the ratio's median and extremes with some decimals."""
    if spread is None:
        return "-"
    low, high = f"{spread.low:.{decimals}f}", f"{spread.high:.{decimals}f}"
    return f"{spread.median:.{decimals}f} ({low} to {high})" if low != high else low
