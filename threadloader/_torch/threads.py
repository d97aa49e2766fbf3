"""What torch and CUDA keep for each thread: device, modes, number of cores, and worker info.

torch keeps the worker info in a global of its module, and user code may have imported
`get_worker_info()` and `initial_seed()` long ago.  So their code is exchanged, not the functions.
Outside worker threads, and in process workers, they answer as before.
"""

from __future__ import annotations

import ctypes
import sys
from contextlib import suppress
from functools import cache
from threading import Thread
from typing import TYPE_CHECKING, Any

import torch
from torch.utils.data import get_worker_info
from torch.utils.data._utils import worker

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import ExitStack

__all__ = [
    "get_worker_info",
    "grad_enabled",
    "inherited_modes",
    "make_worker_info",
    "restore_grad",
    "teach_worker_info",
    "use_threads",
]

# In a worker they would take shared memory, and a file handle with it, for each batch.
_COLLATING = ("torch.utils.data._utils.collate", "torch_geometric.data.collate")
_THREAD_LOCAL = 1  # cudaStreamCaptureModeThreadLocal, and HIP's

grad_enabled = torch.is_grad_enabled


def inherited_modes() -> Callable[[ExitStack], None]:
    """Note what torch keeps for the calling thread, for another thread.

    A forked worker process inherits it; a new thread starts with torch's defaults.  It is what
    ``at::ThreadLocalState`` has, and the current device; but for modes that are objects of Python
    (``TorchFunctionMode``), hooks for saved tensors, levels of ``torch.func`` and forward-mode AD,
    which belong to the computation that entered them.  (The default dtype and deterministic
    algorithms are the process's.)

    Returns:
        Lets the calling thread have the same, until the stack is closed when it ends.
    """
    grad, inference, autocast, cache, device = _modes()
    adopt_device = adopted_device()

    def adopt(life: ExitStack) -> None:
        adopt_device()
        if torch.is_inference_mode_enabled() is not inference:
            # Never left before: it would also take back what was entered after it.
            life.enter_context(torch.inference_mode(inference))
        torch.set_grad_enabled(grad)
        # No `torch.autocast`, which keeps weights that were cast until it is left.
        for kind, (enabled, dtype) in autocast.items():
            torch.set_autocast_enabled(kind, enabled)
            torch.set_autocast_dtype(kind, dtype)
        torch.set_autocast_cache_enabled(cache)
        if _default_device() != device:
            torch.set_default_device(device)

    return adopt


def _modes() -> tuple[bool, bool, dict[str, Any], bool, torch.device | None]:
    """Return what torch keeps for the calling thread."""
    accelerator = torch.accelerator.current_accelerator()
    kinds = {"cpu"} if accelerator is None else {"cpu", accelerator.type}
    autocast = {
        kind: (torch.is_autocast_enabled(kind), torch.get_autocast_dtype(kind)) for kind in kinds
    }
    grad, inference = torch.is_grad_enabled(), torch.is_inference_mode_enabled()
    cache, device = torch.is_autocast_cache_enabled(), _default_device()
    return grad, inference, autocast, cache, device


def _default_device() -> torch.device | None:
    """Return the device that tensors are made on; None if that is not chosen in this thread."""
    # Not `get_default_device`: before torch 2.8 it knows nothing of ``with torch.device(...)``.
    device = torch.empty(0).device
    return None if device.type == "cpu" else device


def restore_grad(enabled: bool) -> None:  # as torch has it
    """Let the calling thread record gradients, or not, as it did before."""
    if torch.is_grad_enabled() is not enabled:
        torch.set_grad_enabled(enabled)


def adopted_device() -> Callable[[], None]:
    """Return a function that makes the calling thread's current device that of another thread.

    A new thread starts with device 0, and its first call to that device makes a context.
    """
    module = _accelerator_in_use()
    if module is None:
        return _nothing
    index = torch.accelerator.current_device_index()

    def adopt() -> None:
        torch.accelerator.set_device_index(index)
        if module is torch.cuda:  # it may page-lock memory
            ignore_captures()

    return adopt


def _accelerator_in_use() -> Any:
    """Return torch's module of the accelerator; None if it was not used yet.

    Asking for its current device would make a context where there is none yet.
    """
    accelerator = torch.accelerator.current_accelerator()
    module = None if accelerator is None else torch.get_device_module(accelerator)
    return module if getattr(module, "is_initialized", bool)() else None


def _nothing() -> None:
    """There is no device to adopt."""


def ignore_captures() -> None:
    """Let the calling thread go on while others capture a CUDA graph, if CUDA has a call for it.

    While a thread captures in CUDA's default mode, ``"global"``, calls that may allocate or wait
    are forbidden in all threads: they fail, and the capture with them.  That leaves out a thread
    whose own mode is "thread local", and its calls are not captured.

    Source: ``cudaThreadExchangeStreamCaptureMode``, which torch itself calls for its allocator.
    """
    name = "hip" if torch.version.hip else "cuda"
    with suppress(OSError, AttributeError):
        # A library's handle finds the names of all libraries that it was linked with; but not on
        # Windows.
        torch_c = ctypes.CDLL(torch._C.__file__)
        exchange = getattr(torch_c, f"{name}ThreadExchangeStreamCaptureMode")
        exchange(ctypes.byref(ctypes.c_int(_THREAD_LOCAL)))  # the former mode is written into it


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


def use_threads(number: int) -> None:
    """Let torch's operators use so many threads when the calling thread calls them.

    ``torch.set_num_threads`` alone would also set the number for all threads that start later, the
    consumer's backward pass included.  So OpenMP's own number is set, which belongs to the calling
    thread.  Where OpenMP can't be reached, torch's number for all threads is put back by a thread
    that ends at once.
    """
    # Asking makes torch initialise this thread, which would undo the setting later.
    threads = torch.get_num_threads()
    if threads == number:
        return
    for set_number in _numbers_of_a_thread():
        set_number(number)
    if torch.get_num_threads() != number:
        torch.set_num_threads(number)
        helper = Thread(target=torch.set_num_threads, args=(threads,), name="tl-intraop")
        try:
            helper.start()
        except RuntimeError:  # no thread can be started: better too many for operators
            torch.set_num_threads(threads)
        else:
            helper.join()


def teach_worker_info(here: Any) -> None:
    """Let torch's functions answer for the calling thread first.

    Call once, before there are workers.

    Args:
        here: A `threading.local`; its ``info`` is the thread's WorkerInfo, or None.
    """
    names: dict[str, Any] = {
        "_threadloader_here": here,
        "_threadloader_frame": sys._getframe,
        "_threadloader_hide": _COLLATING,
    }
    vars(worker).update(names)
    vars(torch.random).update(names)
    worker.get_worker_info.__code__ = _get_worker_info.__code__
    torch.random.initial_seed.__code__ = _initial_seed.__code__


def make_worker_info(number: int, workers: int, seed: int, dataset: Any, rng: Any) -> Any:
    """Return torch's own description of a worker.

    Args:
        number: The worker, from 0.
        workers: How many there are.
        seed: The worker's own.
        dataset: The worker's copy.
        rng: An object with the attributes of torch's container of generators.
    """
    kind: Any = worker.WorkerInfo
    return kind(
        id=number,
        num_workers=workers,
        seed=seed,
        dataset=dataset,
        rng=rng,
        worker_method="thread",
    )


# What follows runs with the globals of torch's modules.


def _get_worker_info() -> Any:
    info = _threadloader_here.info  # type: ignore[name-defined]  # noqa: F821
    if info is None:
        return _worker_info  # type: ignore[name-defined]  # noqa: F821
    if _threadloader_frame(1).f_globals.get("__name__") in _threadloader_hide:  # type: ignore[name-defined]  # noqa: F821
        return None
    return info


def _initial_seed() -> int:
    streams = globals().get("_threadloader_streams")
    stream = streams and streams.stream
    seed = None if stream is None else stream.initial_seed()
    if seed is not None:
        return seed  # type: ignore[no-any-return]
    info = _threadloader_here.info  # type: ignore[name-defined]  # noqa: F821
    if info is None:
        return default_generator.initial_seed()  # type: ignore[name-defined,no-any-return]  # noqa: F821
    return info.seed  # type: ignore[no-any-return]
