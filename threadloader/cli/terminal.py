"""What a person reads: how far a command is, and a table of plain text at its end."""

from __future__ import annotations

import sys
import textwrap
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence


def show_progress(text: str = "") -> None:
    """Write over the last line of a terminal's how far it is; nothing where nobody looks."""
    if sys.stderr.isatty():
        print(f"\r\033[K{text}", end="", file=sys.stderr, flush=True)


def table(heads: Sequence[str], rows: Sequence[Sequence[str]], words: int = 1) -> list[str]:
    """Return the lines of a table, words to the left and numbers to the right.

    Args:
        heads: Of the columns.
        rows: As many cells each.
        words: Columns with words, which come first; all others have numbers.
    """
    widths = [max(map(len, column)) for column in zip(heads, *rows, strict=True)]
    lines = []
    for row in (heads, ["-" * width for width in widths], *rows):
        cells = [
            cell.ljust(width) if number < words else cell.rjust(width)
            for number, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        lines.append("  ".join(cells).rstrip())
    return lines


def paragraph(text: str, first: str = "* ", others: str = "  ") -> str:
    """Return lines with a hanging indent; a word, say a path, is never broken."""
    return textwrap.fill(
        text,
        width=79,
        initial_indent=first,
        subsequent_indent=others,
        break_long_words=False,
        break_on_hyphens=False,
    )


def in_seconds(seconds: float) -> str:
    """Return a time in seconds, or in milliseconds if it is short."""
    return f"{seconds:,.1f} s" if seconds >= 1 else f"{seconds * 1e3:,.0f} ms"
