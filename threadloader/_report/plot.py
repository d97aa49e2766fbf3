"""The plot of a loader's run: rate, waiting and threads over time."""

from __future__ import annotations

from dataclasses import replace
from io import BytesIO
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING, Any

try:
    from matplotlib.figure import Figure
except ImportError as error:
    msg = "loader.plot() needs matplotlib: pip install matplotlib (extra: plot)"
    raise ModuleNotFoundError(msg) from error

from threadloader._report.interval import interval_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from threadloader._work.stats import Sums


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
    *past, now = history
    run = [*past, replace(now, seconds=min(now.seconds, delivered or now.seconds))]
    # After an epoch no threads may run; as in the calling thread, which is one.
    parts = [interval_of(one, two, two.threads or one.threads or 1) for one, two in pairwise(run)]
    parts = [part for part in parts if part.seconds > 0]
    edges = [0.0, *accumulate(part.seconds for part in parts)]
    drawn = (
        (rate, _RATE, "samples/s", [part.samples_per_second for part in parts]),
        (waited, _WAITED, "you waited", [part.wait_share for part in parts]),
        (threads, _AT_WORK, "threads", [part.busy_seconds / part.seconds for part in parts]),
    )
    for axes, colour, label, values in drawn:
        if parts:
            axes.stairs(values, edges, color=colour, fill=True, alpha=0.25)
            axes.stairs(values, edges, color=colour, baseline=None, linewidth=1.5)
        axes.set_ylabel(label)
        axes.set_ylim(bottom=0)
        axes.spines[["top", "right"]].set_visible(False)
    figure.align_ylabels()
    waited.set_ylim(0, 1)
    waited.set_yticks([0, 0.5, 1], ["0%", "50%", "100%"])
    threads.set_title("at work; dotted: those that may run", loc="left", fontsize="small")
    threads.set_xlabel("seconds")
    if parts:
        allowed = [part.threads for part in parts]
        threads.stairs(allowed, edges, color=_ALLOWED, baseline=None, linestyle=":", linewidth=1.5)
    else:
        rate.set_title("too few batches so far")
    return figure
