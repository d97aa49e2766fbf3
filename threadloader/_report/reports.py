"""The methods with which a loader says how it does: metrics, verdict, headspace, trace."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar, cast

if TYPE_CHECKING:
    import os
    from contextlib import AbstractContextManager

    from threadloader._report.headspace import Headspace
    from threadloader._report.verdict import Verdict

__all__ = ["Reports"]

E = TypeVar("E")  # an epoch


class Reports:
    """What a `ThreadLoader` says of itself; a part of that class.

    Threads:
        metrics, verdict, trace: shared.
        headspace: consumer.
    """

    _headspace: Headspace | None = None  # to be measured by the next epochs; None for nothing

    def metrics(self: Any, prefix: str = "loader/") -> dict[str, float]:
        """Return what was counted as numbers by their names, for a logger of metrics.

        Rates and shares are those of the last seconds.  What is not known has no name in it.

        Args:
            prefix: Put before each name; see docs/observing.md for the names.
        """
        from threadloader._report.metrics import metrics_of  # noqa: PLC0415  # rarely needed

        return metrics_of(self.statistics(), prefix)

    def verdict(self: Any) -> Verdict:
        """Return what the loop waits for, by what was counted in the last epoch."""
        from threadloader._report.ending import judged  # noqa: PLC0415  # rarely needed

        self._live_here()
        return judged(
            self._session.stats, self._fixed.tuner, self.num_workers > 0, self._fixed.iterable
        )

    def headspace(self, steps: int = 50) -> Headspace:
        """Measure in the next epochs what loading that takes no time would save.

        The next ``iter()`` delivers batches as ever, and between them some a second time, from
        memory.  A step with such a batch has nothing to wait for.  So your loop gets about
        ``steps`` batches more, and trains on them.  Nothing else has to be changed.  Meanwhile four
        batches are held in memory.  An epoch adds to what was measured before if it has more than
        ``2 * ceil(steps / 5)`` batches; after three in a row that are shorter it gives up.

        Args:
            steps: Steps of each kind that are measured, at least 1.

        Returns:
            What will have the result; print it after the loop, or in it.

        Raises:
            ValueError: ``steps`` is less than 1.
        """
        from threadloader._report.headspace import Headspace  # noqa: PLC0415  # rarely needed

        self._headspace = headspace = Headspace(steps)
        return headspace

    def trace(
        self: Any, path: str | os.PathLike[str], *, limit: int = 500_000
    ) -> AbstractContextManager[None]:
        """Record what every thread does, for Perfetto (ui.perfetto.dev) or chrome://tracing.

        It is a context, around an epoch, a part of one, or several::

            with loader.trace("trace.json"):
                for batch in loader:
                    train_step(batch)

        Args:
            path: Of the file, which is written at the end; ``.json.gz`` is compressed.
            limit: Events that are recorded, at least 1; the file and the log (``threadloader``)
                say how many more there were.  A ticket makes three or four.

        Raises:
            OSError: By ``with``: the file can't be written.
            ValueError: The limit is less than 1.
        """
        from threadloader._trace.recording import recorded  # noqa: PLC0415  # rarely used

        if limit < 1:
            msg = f"limit must be at least 1, not {limit}"
            raise ValueError(msg)
        self._live_here()
        return recorded(path, self._session.stats, limit)

    def _observed(self, epoch: E) -> E:
        """Return an epoch, or what measures the headspace in it."""
        headspace = self._headspace
        if headspace is not None:
            headspace.epoch_ended()  # the one before, if the loop has left it
        if headspace is None or headspace.finished:
            return epoch
        from threadloader._report.headspace import Replaying  # noqa: PLC0415  # rarely needed

        return cast("E", Replaying(epoch, headspace))  # it has the epoch's methods, too
