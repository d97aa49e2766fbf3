"""torch's profiler, set up for loaders: their threads show, with their stages as ranges."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from threadloader import _torch
from threadloader._trace.ranges import Ranges
from threadloader._trace.tracers import trace_all, untrace_all

if TYPE_CHECKING:
    from threadloader._torch.profiler import Profile

__all__ = ["profile"]


def profile(**options: Any) -> Profile:
    """Return a ``torch.profiler.profile`` that shows the threads of loaders, and their stages.

    Ranges ``threadloader: fetch``, ``threadloader: write`` and so on are those of
    ``record_function``, of all loaders of this process::

        with threadloader.profile() as prof:
            for batch in loader:
                train_step(batch)
        prof.export_chrome_trace("profile.json")

    Args:
        options: Arguments of ``torch.profiler.profile``.  An ``experimental_config`` is taken as
            it is; worker threads show if it has ``profile_all_threads``.

    Raises:
        ModuleNotFoundError: torch is not installed.
    """
    if not _torch.AVAILABLE:
        msg = "threadloader.profile needs torch, which is not installed; see loader.trace"
        raise ModuleNotFoundError(msg)
    from threadloader._torch.profiler import (  # noqa: PLC0415  # torch is optional
        Profile,
        RecordFunctions,
    )

    functions = RecordFunctions()
    tracer = Ranges(functions.push, functions.pop)
    return Profile(partial(trace_all, tracer), partial(untrace_all, tracer), **options)
