"""Settings that torch keeps for each thread: device, modes, and the number of cores."""

from __future__ import annotations

import ctypes
from contextlib import contextmanager
from functools import cache
from threading import Thread
from typing import TYPE_CHECKING

import torch

from threadloader._torch.capture import ignore_captures

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from contextlib import AbstractContextManager

__all__ = ["grad_enabled", "inherited_modes", "restore_grad", "use_one_thread"]

grad_enabled = torch.is_grad_enabled


def inherited_modes() -> Callable[[], AbstractContextManager[None]]:
    """Note the calling thread's device, grad mode and inference mode, for another thread.

    A forked worker process inherits the modes; a new thread starts with torch's defaults.

    Returns:
        A maker of the context in which the other thread runs.
    """
    grad, inference = torch.is_grad_enabled(), torch.is_inference_mode_enabled()
    adopt_device = adopted_device()

    @contextmanager
    def modes() -> Iterator[None]:
        adopt_device()
        with torch.inference_mode(inference), torch.set_grad_enabled(grad):
            yield

    return modes


def restore_grad(enabled: bool) -> None:  # as torch has it
    """Let the calling thread record gradients, or not, as it did before."""
    if torch.is_grad_enabled() is not enabled:
        torch.set_grad_enabled(enabled)


def adopted_device() -> Callable[[], None]:
    """Return a function that makes the calling thread's current device that of another thread.

    A new thread starts with device 0, and its first call to that device makes a context.
    """
    accelerator = torch.accelerator.current_accelerator()
    module = None if accelerator is None else torch.get_device_module(accelerator)
    # Asking for its current device would make a context where there is none yet.
    if module is None or not getattr(module, "is_initialized", bool)():
        return _nothing
    index = torch.accelerator.current_device_index()

    def adopt() -> None:
        torch.accelerator.set_device_index(index)
        if module is torch.cuda:  # it may page-lock memory
            ignore_captures()

    return adopt


def _nothing() -> None:
    """There is no device to adopt."""


@cache  # a handle is a class, and so in cycles of references
def _numbers_of_a_thread() -> list[Callable[[int], object]]:
    """Return functions that set how many threads the calling thread's operators use."""
    try:
        # A library's handle finds the names of all libraries that it was linked with.
        torch_c = ctypes.CDLL(torch._C.__file__)
    except OSError:
        return []
    # After `torch.set_num_threads`, MKL's matrix products have a number of their own.
    names = ("omp_set_num_threads", "MKL_Set_Num_Threads_Local")
    return [getattr(torch_c, name) for name in names if hasattr(torch_c, name)]


def use_one_thread() -> None:
    """Let torch's operators use one thread when the calling thread calls them.

    ``torch.set_num_threads`` alone would also set the number for all threads that start later, the
    consumer's backward pass included.  So OpenMP's own number is set, which belongs to the calling
    thread.  Where OpenMP can't be reached, torch's number for all threads is put back by a thread
    that ends at once.
    """
    # Asking makes torch initialise this thread, which would undo the setting later.
    threads = torch.get_num_threads()
    if threads == 1:
        return
    for set_number in _numbers_of_a_thread():
        set_number(1)
    if torch.get_num_threads() != 1:
        torch.set_num_threads(1)
        helper = Thread(target=torch.set_num_threads, args=(threads,), name="tl-intraop")
        try:
            helper.start()
        except RuntimeError:  # no thread can be started: better too many for operators
            torch.set_num_threads(threads)
        else:
            helper.join()
