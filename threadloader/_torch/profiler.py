"""torch's profilers: ranges of ``record_function`` in every thread, and NVTX."""

from __future__ import annotations

from threading import local
from typing import TYPE_CHECKING, Any

import torch
from torch.profiler import record_function

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["Profile", "RecordFunctions", "nvtx_functions"]


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


class RecordFunctions:
    """Ranges of ``record_function``, which nest in each thread.

    Threads:
        all: shared.
    """

    def __init__(self) -> None:
        self._here = local()

    def push(self, name: str) -> None:
        """Begin a range."""
        opened = record_function(name)
        opened.__enter__()  # type: ignore[no-untyped-call]  # torch's
        vars(self._here).setdefault("open", []).append(opened)

    def pop(self) -> None:
        """End the range that was begun last."""
        opened = vars(self._here).get("open")
        if opened:  # else Ctrl-C came up as it was about to begin
            opened.pop().__exit__(None, None, None)


def nvtx_functions() -> tuple[Callable[[str], Any], Callable[[], Any]] | None:
    """Return how to begin and end an NVTX range; None where torch was built without CUDA."""
    try:
        nvtx: Any = torch.cuda.nvtx
        nvtx.range_push("threadloader")
        nvtx.range_pop()
    except RuntimeError:  # what the calls of a build without CUDA do
        return None
    return nvtx.range_push, nvtx.range_pop
