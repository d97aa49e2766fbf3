"""Stages as ranges of a profiler: torch's, or those that show NVTX, as Nsight Systems does."""

from __future__ import annotations

from contextlib import suppress
from functools import cache, partial
from typing import TYPE_CHECKING, Any

from threadloader import _torch
from threadloader._report.stages import add_listener, remove_listener

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager

    from threadloader._torch.profiler import Profile

    Range = Callable[[str], AbstractContextManager[Any]]


def _enter(range_of: Range, stage: str, *_: object) -> Callable[[], object]:
    """Mark a stage by a range in its thread, which is entered and left there; a `Listener`.

    Profilers add up the ranges of one name, so its rows do not count.
    """
    entered = range_of(f"threadloader: {stage}")
    entered.__enter__()
    return partial(entered.__exit__, None, None, None)


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
    from threadloader._torch import profiler  # noqa: PLC0415  # torch is optional

    ranges = partial(_enter, profiler.record_function)
    begin, end = partial(add_listener, ranges), partial(remove_listener, ranges)
    return profiler.Profile(begin, end, **options)


@cache  # once in a process
def mark_with_nvtx() -> None:
    """Mark the stages of all loaders by NVTX ranges, if there is a package that can."""
    range_of: Range | None = None
    if _torch.AVAILABLE:
        from threadloader._torch.profiler import nvtx_range  # noqa: PLC0415  # rarely used

        range_of = nvtx_range()  # None where torch was built without CUDA
    if range_of is None:
        with suppress(ImportError):
            import nvtx  # noqa: PLC0415  # an optional package

            range_of = partial(nvtx.annotate, domain="threadloader")
    if range_of is not None:
        add_listener(partial(_enter, range_of))
