"""What a notebook asks a loader for: its page, its plot, and where a progress bar begins."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

from threadloader._resume.position import Position
from threadloader._session.state import has_ended

__all__ = ["Shown"]


class Shown:
    """What a `ThreadLoader` shows of itself; a part of that class."""

    def resumes_after(self: Any) -> int:
        """Return how many batches the next ``iter()`` leaves out: it goes on from a loaded state.

        ``len()`` is that of the whole epoch, for progress bars, too: they begin here, as in
        ``tqdm(loader, initial=loader.resumes_after())``.  It is 0 where an epoch begins anew.
        """
        saved = self._session.run.saved
        if saved is None or has_ended(saved):
            return 0
        return Position.of(saved["epoch"], saved).batches

    def plot(self: Any) -> Any:
        """Draw rate, waiting and threads over time, all epochs together.

        A notebook shows the figure where it is the last value of a cell; ``.savefig(path)`` writes
        it.  The loader notes what it has counted once a second, as batches are delivered; after
        some minutes less often.

        Returns:
            A ``matplotlib.figure.Figure``.

        Raises:
            ModuleNotFoundError: matplotlib is not installed (the extra ``plot``).
        """
        from threadloader._notebook.plot import plot  # noqa: PLC0415  # matplotlib is optional

        self._live_here()
        last = self._session.stats.last
        return plot(self._session.history(), 0.0 if last is None else last.latest)

    def __repr__(self: Any) -> str:
        kind = type(self).__name__
        try:
            described = ", ".join(self._described())
        except AttributeError:  # it is being made
            return f"<{kind}>"
        if self._fixed.tunes_threads:
            threads = "as many threads as are fastest"
        else:
            threads = f"{self.num_workers} thread{'s' * (self.num_workers != 1)}"
        return f"<{kind} of {described}, {threads}>"

    def _repr_html_(self: Any) -> str:
        """Return the page that a notebook shows."""
        from threadloader._notebook.page import page  # noqa: PLC0415  # rarely used

        statistics = self.statistics()
        verdict = self.verdict() if statistics.epoch.batches else None
        return page(type(self).__name__, self._described(), statistics, verdict)

    def _described(self: Any) -> list[str]:
        """Return in a few words what is loaded."""
        described = [type(self.dataset).__name__]
        # The length of an iterable is noted when it is asked for: see `__len__`.
        if not self._fixed.iterable:
            with suppress(Exception):  # a sampler of the user's may have none
                batches = len(self)
                described.append(f"{batches:,} {'batch' if batches == 1 else 'batches'}")
        if self.batch_size is not None:
            described.append(f"{self.batch_size:,} sample{'s' * (self.batch_size != 1)} in each")
        return described
