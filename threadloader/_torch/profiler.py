"""torch's profilers: ranges of ``record_function`` in every thread, and NVTX."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch.profiler import record_function

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["Profile", "nvtx_range", "record_function"]


class Profile(torch.profiler.profile):
    """``torch.profiler.profile`` of all threads.

    Without ``profile_all_threads`` torch profiles the thread that began it, and those of autograd.

    Args:
        started: Called before it starts.
        stopped: Called after it has stopped.
        options: torch's arguments.
    """

    def __init__(
        self, started: Callable[[], None], stopped: Callable[[], None], **options: Any
    ) -> None:
        if options.get("experimental_config") is None:
            # Without it, workers are in the trace by their ranges alone.
            config: Any = getattr(torch._C._profiler, "_ExperimentalConfig", None)
            if config is not None:
                options["experimental_config"] = config(profile_all_threads=True)
        super().__init__(**options)
        self._started = started
        self._stopped = stopped

    def start(self) -> None:
        """Start to profile."""
        self._started()
        try:
            super().start()
        except BaseException:
            self._stopped()
            raise

    def stop(self) -> None:
        """Stop to profile."""
        try:
            super().stop()
        finally:
            self._stopped()


def nvtx_range() -> Any:
    """Return what makes an NVTX range of a name; None where torch was built without CUDA."""
    try:
        with torch.cuda.nvtx.range("threadloader"):
            return torch.cuda.nvtx.range
    except RuntimeError:  # what the calls of a build without CUDA do
        return None
