"""NVTX ranges, which NVIDIA's Nsight Systems shows: by torch, or by the package ``nvtx``."""

from __future__ import annotations

from contextlib import suppress
from functools import cache, partial
from typing import TYPE_CHECKING, Any

from threadloader import _torch
from threadloader._trace.ranges import Ranges
from threadloader._trace.tracers import trace_all

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["trace_with_nvtx"]


@cache  # once in a process
def trace_with_nvtx() -> None:
    """Mark the stages of all loaders by NVTX ranges, if there is a package that can."""
    found = _of_torch() or _of_nvtx()
    if found is not None:
        trace_all(Ranges(*found))


def _of_torch() -> tuple[Callable[[str], Any], Callable[[], Any]] | None:
    """Return how torch begins and ends a range; None where it was built without CUDA."""
    if not _torch.AVAILABLE:
        return None
    from threadloader._torch.profiler import nvtx_functions  # noqa: PLC0415  # rarely used

    return nvtx_functions()


def _of_nvtx() -> tuple[Callable[[str], Any], Callable[[], Any]] | None:
    """Return how the package ``nvtx`` begins and ends a range; None where it is missing."""
    with suppress(ImportError):
        import nvtx  # noqa: PLC0415  # an optional package

        push = partial(nvtx.push_range, domain="threadloader")
        return push, partial(nvtx.pop_range, domain="threadloader")
    return None
