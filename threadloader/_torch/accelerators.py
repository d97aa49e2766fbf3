"""Accelerators: page-locked memory for any loader; for the copier a stream of its own, and events.

Tests have another implementation of `Device`, whose copies finish late.
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from threading import RLock
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from threadloader._lifetime import DeviceMemory, in_forked_child
from threadloader._torch.containers import remade
from threadloader._torch.device import StreamlessDevice
from threadloader._torch.threads import ignore_captures
from threadloader.errors import warn_user

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from contextlib import AbstractContextManager

    from threadloader._torch.device import Device, Event, Leaf, TargetDevice

__all__ = ["can_pin", "empty_pinned", "open_device", "pinned"]

# A free-threaded torch may crash where threads make tensors at once (pytorch#171992, open): at
# least no two workers make page-locked ones at once.
_making = RLock()  # a finalizer of the user's may run inside, and begin an epoch

# One stream for all loaders of the process, by its device: torch has few of a kind, its allocator
# keeps free memory for each, and copies come one after the other anyway.  Guarded by _making.
_streams: dict[torch.device, Any] = {}


@in_forked_child
def _forget() -> None:
    """Make the lock anew in a forked child: another thread may have held it."""
    global _making  # noqa: PLW0603  # of the process, and this is a new one
    _making = RLock()


_WITHOUT = "without one: device='cuda' if torch.cuda.is_available() else 'cpu'"

_DTYPES: dict[str, torch.dtype] = {
    np.dtype(code).str: torch.from_numpy(np.empty(0, code)).dtype
    for code in (*"?bBhHiIlqefdFD", np.uint64)
}


def open_device(value: Any) -> TargetDevice:
    """Return the device that batches are copied to.

    Args:
        value: The user's argument: a name, an index, a ``torch.device``; or a `Device`.

    Returns:
        The device, or None for the CPU.

    Raises:
        RuntimeError: The device is not there; the message says what is missing.
        ValueError: It is the name of no device, or of one that holds no data.
        TypeError: It is not a device.
    """
    if hasattr(value, "receive"):
        device: Device = value
        return device
    value = int(value) if isinstance(value, np.integer) else value
    wanted = _device(value)
    if wanted.type == "meta":
        msg = f"device={value!r} holds no data: batches can't be copied to it"
        raise ValueError(msg)
    if wanted.type == "cpu":
        return None
    _check_there(wanted, value)
    if wanted.type == "mps":  # it has no streams to copy on
        return StreamlessDevice(lambda batch: moved(batch, wanted, []))
    return _Cuda(wanted) if wanted.type == "cuda" else Accelerator(wanted)


def _device(value: Any) -> torch.device:
    """Return a device of torch's."""
    whole = isinstance(value, int) and not isinstance(value, bool) and value >= 0
    if whole and torch.accelerator.current_accelerator() is None:
        msg = f"device={value!r} is not there: this torch ({torch.__version__}) has no accelerator"
        raise RuntimeError(f"{msg}; {_WITHOUT}")
    try:
        return torch.device(value)
    except (RuntimeError, TypeError) as error:
        why = str(error).partition("\n")[0]
        msg = f"device must be what torch.device() accepts, but got {value!r}: {why}"
        raise (ValueError if isinstance(value, str) else TypeError)(msg) from error


def _check_there(wanted: torch.device, value: Any) -> None:
    """Refuse a device that is not there, and say what is missing."""
    present = torch.accelerator.current_accelerator()
    if present is None or present.type != wanted.type:
        has = "no accelerator" if present is None else f"{present.type!r} alone"
        msg = f"device={value!r} needs a torch with {wanted.type!r}; {torch.__version__} has {has}"
        raise RuntimeError(f"{msg}; {_WITHOUT}")
    # torch counts devices without setting CUDA up, where it can: a process that has set it up can't
    # be forked any more.  Not by torch.accelerator, which sets it up.
    count = torch.get_device_module(present).device_count()
    if not count:
        hidden = " (CUDA_VISIBLE_DEVICES is set)" if "CUDA_VISIBLE_DEVICES" in os.environ else ""
        msg = f"device={value!r} is not there: torch finds no such device, or no driver for it"
        raise RuntimeError(f"{msg}{hidden}; {_WITHOUT}")
    index: int | None = wanted.index
    if index is not None and index >= count:
        msg = f"device={value!r} is not there: there are {count}, numbered from 0"
        raise RuntimeError(msg)


@dataclass(frozen=True, slots=True)
class _Pinned:
    """A page-locked batch that lies in no slot."""

    batch: Any
    events: list[Any]  # after which tensors that the dataset made on the device are there
    there: list[Any]  # those tensors
    memory: DeviceMemory  # of the batch; dropped last


class Accelerator:
    """A device behind torch's generic interface to accelerators; see `Device`.

    Args:
        device: Without an index, the current one of the thread that calls `here`.
    """

    full: type[BaseException] = torch.OutOfMemoryError

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._stream: Any = None  # of one epoch

    def __str__(self) -> str:
        return str(self.device)

    def here(self) -> Device:
        index: int | None = self.device.index
        if index is None:
            index = torch.accelerator.current_device_index()
        here = type(self)(torch.device(self.device.type, index))
        with _making:
            stream = _streams.get(here.device)
            if stream is None:
                stream = _streams[here.device] = here._new_stream()
        here._stream = stream  # our own
        return here

    def allocate(self, nbytes: int) -> tuple[memoryview[Any], DeviceMemory]:
        with self._guard():
            tensor, array = empty_pinned((nbytes,), np.dtype(np.uint8))
        return memoryview(array), DeviceMemory(tensor, self._check)

    def _check(self) -> None:
        """Record an event behind all copies, as torch does when it frees their sources."""
        for device, stream in list(_streams.items()):
            if device.type != self.device.type:
                continue
            event: Any = self._new_event()
            event.record(stream)

    def _guard(self) -> AbstractContextManager[object]:
        return nullcontext()

    def adopt(self) -> None:
        # For the thread's life: it does nothing else.
        torch.accelerator.set_device_index(self.device.index)
        self._use(self._stream)

    def copy(self, source: DeviceMemory, leaves: Sequence[Leaf]) -> list[Any]:
        copies = []
        for offset, dtype, shape in leaves:
            leaf = view_of(source.memory, offset, dtype, shape)
            there = torch.empty(shape, dtype=leaf.dtype, device=self.device)
            copies.append(there.copy_(leaf, non_blocking=True))
        return copies

    def pin(self, batch: Any) -> _Pinned:
        kind, there = self.device.type, list[Any]()

        def pin(leaf: Any) -> Any:
            _add_tensors(leaf, kind, there)
            if isinstance(leaf, Tensor):
                on_host = leaf.device.type == "cpu" and leaf.layout == torch.strided
                return pinned_tensor(leaf) if on_host else leaf
            return (
                leaf.pin_memory() if hasattr(leaf, "to") and hasattr(leaf, "pin_memory") else leaf
            )

        with self._guard():
            batch = mapped(batch, pin)
            # Tensors that the dataset made on the device are there after these events.
            events = []
            for device in {tensor.device for tensor in there}:
                events.append(event := self._new_event())
                event.record(self._stream_of(device))
        return _Pinned(batch, events, there, DeviceMemory(batch, self._check))

    def move(self, batch: _Pinned) -> tuple[Any, list[Any]]:
        for event in batch.events:
            self._stream.wait_event(event)
        for tensor in batch.there:
            tensor.record_stream(self._stream)
        tensors: list[Any] = []
        return moved(batch.batch, self.device, tensors), tensors

    def record(self) -> Event:
        event: Any = self._new_event()
        event.record(self._stream)
        marked: Event = event
        return marked

    def keep(self) -> DeviceMemory:
        return DeviceMemory(None, self._check)

    def receive(self, event: Event, tensors: Iterable[Any]) -> Event:
        stream = self._stream_of(self.device)
        reached: Any = self._new_event()
        reached.record(stream)
        stream.wait_event(event)
        for tensor in tensors:
            tensor.record_stream(stream)
        marked: Event = reached
        return marked

    def _new_stream(self) -> Any:
        return torch.Stream(self.device)

    def _use(self, stream: Any) -> None:
        torch.accelerator.set_stream(stream)

    def _new_event(self) -> Any:
        return torch.Event(self.device)

    def _stream_of(self, device: torch.device) -> Any:
        """Return the calling thread's stream on a device."""
        return torch.accelerator.current_stream(device)


class _Cuda(Accelerator):
    """CUDA: its own events can wait on the host without using a core."""

    def adopt(self) -> None:
        super().adopt()
        ignore_captures()

    def _new_stream(self) -> Any:
        # Streams of high priority are a pool of their own: the user seldom has the same one.
        return torch.cuda.Stream(self.device, priority=-1)  # type: ignore[no-untyped-call]

    def _guard(self) -> AbstractContextManager[object]:
        return torch.cuda.device(self.device)  # without an index it is the thread's own

    def _use(self, stream: Any) -> None:
        torch.cuda.set_stream(stream)

    def _new_event(self) -> Any:
        return torch.cuda.Event(blocking=True)  # type: ignore[no-untyped-call]

    def _stream_of(self, device: torch.device) -> Any:
        return torch.cuda.current_stream(device)


def empty_pinned(shape: tuple[int, ...], dtype: np.dtype[Any]) -> tuple[Tensor, Any]:
    """Return a page-locked tensor for the current accelerator, and an array over its memory."""
    with _making:
        tensor = torch.empty(shape, dtype=_DTYPES[dtype.str], device="cpu", pin_memory=True)
        return tensor, tensor.numpy()


def pinned_tensor(tensor: Tensor) -> Tensor:
    """Return a tensor in page-locked memory."""
    if type(tensor) is not Tensor:  # the user's code: it runs without the lock
        return tensor.pin_memory()
    with _making:
        return tensor.pin_memory()


def pinned(batch: Any) -> Any:
    """Return a batch in page-locked memory, of the structure that torch's ``pin_memory`` makes."""
    return mapped(batch, _pinned_leaf, "pin_memory")


def _pinned_leaf(leaf: Any) -> Any:
    if isinstance(leaf, Tensor):
        return pinned_tensor(leaf)
    return leaf.pin_memory() if hasattr(leaf, "pin_memory") else leaf


def can_pin(device: str) -> bool:
    """Whether batches can be pinned for the current accelerator; a warning says why not.

    Args:
        device: The user's ``pin_memory_device``, which torch ignores.
    """
    if device:
        warn_user(
            "pin_memory_device is deprecated, the current accelerator will be used as the device,"
            f"ignore pin_memory_device='{device}'.",
            UserWarning,
        )
    accelerator = torch.accelerator.current_accelerator()
    if accelerator is None or not torch.accelerator.is_available():
        warn_user(
            "'pin_memory' argument is set as true but no accelerator is found, "
            "then device pinned memory won't be used.",
            UserWarning,
        )
        return False
    if accelerator.type == "mps":
        warn_user(
            "'pin_memory' argument is set as true but not supported on MPS now, "
            "device pinned memory won't be used.",
            UserWarning,
        )
        return False
    return True


def view_of(memory: Tensor, offset: int, dtype: np.dtype[Any], shape: tuple[int, ...]) -> Tensor:
    """Return a tensor of ``shape`` over the memory of another, from ``offset`` (bytes) on.

    It is not a view for autograd, so the two share no version counter.  It takes a third of the
    time of slicing and viewing.
    """
    view = torch.empty(0, dtype=_DTYPES[dtype.str], device=memory.device)
    strides = tuple(math.prod(shape[axis + 1 :]) for axis in range(len(shape)))
    return view.set_(memory.untyped_storage(), offset // dtype.itemsize, shape, strides)


def moved(batch: Any, device: torch.device, tensors: list[Any]) -> Any:
    """Begin to copy a batch of any structure to a device.

    Args:
        batch: Its tensors, and objects with a ``to()``, are copied; all else stays as it is.
        device: The device.
        tensors: Gets all copied tensors, also tensors in objects.

    Returns:
        The structure that torch's ``pin_memory=True`` makes.
    """
    # On MPS the copy could come after the next use of memory, which is not page-locked there.
    # Source: pytorch#189690.
    waits = device.type == "mps"

    def move(leaf: Any) -> Any:
        if isinstance(leaf, Tensor):
            leaf = leaf.to(device, non_blocking=not waits)
            _add_tensors(leaf, device.type, tensors)
        elif hasattr(leaf, "to"):
            try:
                leaf = leaf.to(device, non_blocking=not waits)
            except TypeError:  # it takes no such argument
                leaf = leaf.to(device)
            if hasattr(leaf, "record_stream"):
                tensors.append(leaf)
            else:
                _add_tensors(leaf, device.type, tensors)
        return leaf

    return mapped(batch, move)


# The methods that return the parts of a sparse tensor, which has no memory of its own.
_PARTS = {
    torch.sparse_coo: ("_indices", "_values"),
    torch.sparse_csr: ("crow_indices", "col_indices", "values"),
    torch.sparse_bsr: ("crow_indices", "col_indices", "values"),
    torch.sparse_csc: ("ccol_indices", "row_indices", "values"),
    torch.sparse_bsc: ("ccol_indices", "row_indices", "values"),
}


def _add_tensors(value: Any, kind: str, tensors: list[Any], depth: int = 4) -> None:
    """Add the dense tensors on a kind of device that an object holds, a few levels down."""
    if isinstance(value, Tensor):
        if value.device.type != kind:  # a PackedSequence keeps its sizes on the CPU
            return
        parts = _PARTS.get(value.layout)
        tensors += [value] if parts is None else [getattr(value, part)() for part in parts]
    elif depth and isinstance(value, Mapping):
        for part in value.values():
            _add_tensors(part, kind, tensors, depth - 1)
    elif depth and isinstance(value, (list, tuple)):
        for part in value:
            _add_tensors(part, kind, tensors, depth - 1)
    elif depth and hasattr(value, "__dict__"):
        _add_tensors(vars(value), kind, tensors, depth - 1)


# Batches of any structure


def mapped(batch: Any, change: Callable[[Any], Any], method: str = "to") -> Any:
    """Return a batch with each leaf changed.

    Mappings and sequences keep their type, if it can be made again.  Leaves are strings, tensors,
    and objects with the method.

    Args:
        batch: Any structure.
        change: Called with each leaf.
        method: An object that has it is a leaf, also if it is a container.

    Source: the cases that ``torch.utils.data._utils.pin_memory.pin_memory`` tells apart.
    """
    if isinstance(batch, (Tensor, str, bytes)) or hasattr(batch, method):
        return change(batch)
    if isinstance(batch, Mapping):
        return remade(batch, {key: mapped(value, change, method) for key, value in batch.items()})
    if isinstance(batch, tuple):
        parts = [mapped(part, change, method) for part in batch]
        kind = type(batch)
        return kind(*parts) if hasattr(batch, "_fields") else kind(parts)
    if isinstance(batch, Sequence):
        return remade(batch, [mapped(part, change, method) for part in batch])
    return change(batch)
