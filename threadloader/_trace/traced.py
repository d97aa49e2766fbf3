"""What every loader has for traces: its tracers, and the method that records a trace."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from threadloader._trace.tracers import Tracers

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from threadloader._trace.recorder import Slots

__all__ = ["Traced", "new_tracers"]

NVTX = "THREADLOADER_NVTX"  # the environment variable that switches NVTX ranges on
LIMIT = 500_000  # events: some 100 MiB while they are recorded, and as much in the file


def new_tracers() -> Tracers:
    """Return the tracers of a new loader; the first one switches NVTX ranges on, if asked for."""
    if os.environ.get(NVTX, "0") not in {"", "0"}:
        from threadloader._trace.nvtx_ranges import trace_with_nvtx  # noqa: PLC0415  # rarely used

        trace_with_nvtx()
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
