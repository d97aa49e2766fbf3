"""The plot of a loader's run: rate, waiting and threads over time."""

from __future__ import annotations

from dataclasses import replace
from io import BytesIO
from itertools import pairwise
from typing import TYPE_CHECKING, Any

try:
    from matplotlib.figure import Figure
except ImportError as error:
    msg = "loader.plot() needs matplotlib: pip install matplotlib (extra: plot)"
    raise ModuleNotFoundError(msg) from error

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from threadloader._work.counters import Sums

__all__ = ["plot"]

_RATE, _WAITED, _AT_WORK, _ALLOWED = "#0969da", "#bc4c00", "#1a7f64", "#59636e"


class _Shown(Figure):  # type: ignore[misc]  # matplotlib is not installed where types are checked
    """A figure that a notebook shows once, whether or not pyplot was imported there."""

    def _repr_png_(self) -> bytes:
        written = BytesIO()
        self.savefig(written, format="png", dpi=120)
        return written.getvalue()


def plot(history: Sequence[Sums], delivered: float = 0.0) -> Any:
    """Return a figure.

    Args:
        history: What the loader had counted, oldest first; the last one is taken now.
        delivered: When the last batch was delivered, on the clock of the snapshots.  The time since
            then is not drawn.
    """
    figure = _Shown(figsize=(8.0, 4.8), layout="constrained")
    rate, waited, threads = figure.subplots(3, sharex=True)
    run = _until(history, delivered)
    edges = [snapshot.seconds - run[0].seconds for snapshot in run]

    def drawn(axes: Any, of: Callable[[Sums], float], most: float, colour: str) -> None:
        values = [
            min(most, (of(after) - of(before)) / (after.seconds - before.seconds))
            for before, after in pairwise(run)
        ]
        if values:
            axes.stairs(values, edges, color=colour, fill=True, alpha=0.25)
            axes.stairs(values, edges, color=colour, baseline=None, linewidth=1.5)

    drawn(rate, lambda one: one.samples, float("inf"), _RATE)
    drawn(waited, lambda one: one.wait_seconds + one.inline_seconds, 1.0, _WAITED)
    drawn(threads, lambda one: one.busy_seconds, float("inf"), _AT_WORK)
    if len(run) > 1:
        # After an epoch there are none; as in the calling thread, which is one.
        allowed = [after.threads or before.threads or 1 for before, after in pairwise(run)]
        threads.stairs(allowed, edges, color=_ALLOWED, baseline=None, linestyle=":", linewidth=1.5)
    for axes, label in ((rate, "samples/s"), (waited, "you waited"), (threads, "threads")):
        axes.set_ylabel(label)
        axes.set_ylim(bottom=0)
        axes.spines[["top", "right"]].set_visible(False)
    figure.align_ylabels()
    waited.set_ylim(0, 1)
    waited.set_yticks([0, 0.5, 1], ["0%", "50%", "100%"])
    threads.set_title("at work; dotted: those that may run", loc="left", fontsize="small")
    threads.set_xlabel("seconds")
    if len(run) < 2:
        rate.set_title("too few batches so far")
    return figure


def _until(history: Sequence[Sums], delivered: float) -> list[Sums]:
    """Return the snapshots up to the last batch, each later than the one before."""
    run = [*history]
    if len(run) > 1 and run[-2].seconds < delivered < run[-1].seconds:
        run[-1] = replace(run[-1], seconds=delivered)
    elif len(run) > 1 and delivered and delivered <= run[-2].seconds:
        run.pop()
    return [
        one for index, one in enumerate(run) if not index or one.seconds > run[index - 1].seconds
    ]
