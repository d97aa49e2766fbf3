"""The demo's screen: facts, bars while loaders run, a table at the end.

Bars go to stderr, and only if that is a terminal; all else goes to stdout.  The thread that
measures draws the bars, a few times a second and for every loader alike: rich's own refresh thread
would compete with the loaders for cores and for the GIL.
"""

from __future__ import annotations

import textwrap
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING

from rich import box
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn
from rich.table import Table
from rich.text import Text

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from threadloader.cli.race import Result

__all__ = ["Bars", "Screen"]

BETWEEN_DRAWINGS = 0.25  # seconds
INDENT = 9  # columns


class Bars:
    """Named progress bars, each with a figure beside it."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self._tasks: dict[str, TaskID] = {}
        self._drawn = 0.0

    def add(self, name: str, total: float) -> None:
        """Add a bar at 0 of ``total``, in units of the caller's."""
        self._tasks[name] = self._progress.add_task(name, total=total, figure="")

    def move(self, name: str, completed: float, figure: str) -> None:
        """Move a bar; it is drawn if the last drawing is old enough."""
        if self._progress.disable:
            return
        self._progress.update(self._tasks[name], completed=completed, figure=figure)
        now = time.perf_counter()
        if now - self._drawn >= BETWEEN_DRAWINGS:
            self._progress.refresh()
            self._drawn = time.perf_counter()


class Screen:
    """Write to stdout, and draw bars on stderr."""

    def __init__(self) -> None:
        self._out = Console(highlight=False)
        self._err = Console(highlight=False, stderr=True)

    def facts(self, facts: Sequence[tuple[str, str]]) -> None:
        """Print names, of less than `INDENT` characters, and their values."""
        for name, value in facts:
            self._print(value, f"{name:<{INDENT}}", " " * INDENT)

    def note(self, text: str) -> None:
        """Print a remark."""
        self._print(text, "* ", "  ")

    def _print(self, text: str, first: str, others: str) -> None:
        """Print a paragraph with a hanging indent; a word, say a path, is never broken."""
        lines = textwrap.fill(
            text,
            width=self._out.width,
            initial_indent=first,
            subsequent_indent=others,
            break_long_words=False,
            break_on_hyphens=False,
        )
        paragraph = Text(lines)
        paragraph.stylize("dim", 0, len(first))
        self._out.print(paragraph, soft_wrap=True)

    @contextmanager
    def bars(self) -> Iterator[Bars]:
        """Show bars until the block ends; then they are gone.

        They end before the 80th column: a terminal echoes ^C behind them, and if that began a new
        line, rich would erase one line too few.
        """
        visible = self._err.is_terminal and not self._err.is_dumb_terminal
        with Progress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=30),
            TextColumn("{task.fields[figure]:>15}"),
            console=self._err,
            auto_refresh=False,
            transient=True,
            disable=not visible,
        ) as progress:
            yield Bars(progress)

    def table(self, results: Sequence[Result]) -> None:
        """Print the results; the others are compared to the first."""
        table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
        table.add_column("loader", overflow="fold")
        for heading in ("samples/s", "vs. loop", "first batch", "CPU/sample"):
            table.add_column(heading, justify="right", no_wrap=True)
        best = max(result.rate for result in results)
        for result in results:
            table.add_row(
                result.name,
                f"{result.rate:,.0f}" if result.rate >= 10 else f"{result.rate:.2f}",
                f"{result.rate / results[0].rate:.2f}x",
                f"{result.first * 1e3:,.0f} ms",
                f"{result.cpu * 1e3:.2f} ms",
                style="bold green" if result.rate == best else None,
            )
        self._out.print()
        self._out.print(table)
        self._out.print()
