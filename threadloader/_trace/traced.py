"""What every loader has for traces: its tracers, and the method that records a trace."""

from __future__ import annotations

from typing import TYPE_CHECKING

from threadloader._trace.tracers import Tracers

if TYPE_CHECKING:
    import os
    from contextlib import AbstractContextManager

    from threadloader._trace.recorder import Slots

__all__ = ["Traced", "new_tracers"]

LIMIT = 500_000  # events: some 100 MiB while they are recorded, and as much in the file


def new_tracers() -> Tracers:
    """Return the tracers of a new loader."""
    return Tracers()


class Traced:
    """Gives `ThreadLoader` its method ``trace``."""

    def trace(
        self, path: str | os.PathLike[str], *, limit: int = LIMIT
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
        from threadloader._trace.trace_file import TraceFile  # noqa: PLC0415  # rarely used

        if limit < 1:
            msg = f"limit must be at least 1, not {limit}"
            raise ValueError(msg)
        self._live_here()
        session = vars(self)["_session"]  # of a folder that imports this one

        def count_slots() -> Slots:
            from threadloader._trace.recorder import Slots  # noqa: PLC0415  # rarely used

            counted = session.ring.statistics()
            return Slots(counted.free, counted.filling, counted.leased)

        return TraceFile(path, session.tracers, count_slots, limit)

    def _live_here(self) -> None:
        """See `ThreadLoader`."""
        raise NotImplementedError
