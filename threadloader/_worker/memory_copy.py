"""Copies of memory: arrays, tensors and buffers, as the views of one another that they are.

Large memory is shared, and so is what cannot be written, or is there to be shared.
"""

from __future__ import annotations

import array
import io
import mmap
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import numpy as np

from threadloader import _torch

if TYPE_CHECKING:
    from threadloader._worker.own_copy import Copier, Steps


def copy_array(value: Any, copier: Copier) -> Steps:
    """Copy an array, or make the same view of the copy of what it is a view of."""
    root = value
    while isinstance(memory := _base_of(root), np.ndarray):
        root = memory
    if isinstance(root, np.memmap) or isinstance(memory, mmap.mmap):
        return copier.data(value)
    memory = root if memory is None else memory
    if memory is value:
        twin = yield from _copy_owner(value, copier)
        return twin if twin is value else (yield from copier.attributes(value, copier, twin))
    of_memory = yield "base", memory
    if of_memory is memory:  # data, or what no rule knows
        return copier.data(value)
    offset = value.__array_interface__["data"][0] - _start_of(memory)
    plain = isinstance(of_memory, np.ndarray) and of_memory.flags.c_contiguous
    buffer = of_memory if plain else _bytes_of(of_memory)
    twin = np.ndarray(value.shape, value.dtype, buffer, offset, value.strides)
    if type(value) is not np.ndarray:
        twin = twin.view(type(value))
    twin.flags.writeable = value.flags.writeable
    return (yield from copier.attributes(value, copier, copier.keep(value, twin)))


def _base_of(array: Any) -> Any:
    """Return of what an array is a view; None if it has memory of its own."""
    base = array.base.obj if isinstance(array.base, memoryview) else array.base
    # The views of `numpy.lib.stride_tricks` are of an object that keeps the array.
    kept = getattr(base, "base", None) if hasattr(base, "__array_interface__") else None
    return kept if isinstance(kept, np.ndarray) and not isinstance(base, np.ndarray) else base


def _copy_owner(value: Any, copier: Copier) -> Steps:
    """Copy an array that is no view."""
    start, memory = value.__array_interface__["data"][0], None
    if value.flags.writeable and not value.dtype.hasobject:
        memory = _twin_memory(start, value.nbytes, copier)
    if memory is None and not (value.flags.writeable and copier.affords(value.nbytes)):
        return copier.data(value)
    if memory is None:
        twin = copier.keep(value, value.copy(order="K"))
        if not value.dtype.hasobject:
            copier.memories[start] = value, _bytes_of(twin)
    else:
        twin = np.ndarray(value.shape, value.dtype, memory, 0, value.strides)
        copier.keep(value, twin if type(value) is np.ndarray else twin.view(type(value)))
    yield from _copy_entries(twin)
    return twin


def _copy_entries(twin: Any) -> Steps:
    """Put the twins of objects into the copy of an array that has some."""
    for name in twin.dtype.names or (None,):
        column = twin if name is None else twin[name]
        if column.dtype.hasobject and column.dtype != object:
            raise TypeError  # fields in fields
        if column.dtype == object:
            for place in np.ndindex(column.shape):
                column[place] = yield (place,), column[place]


def _bytes_of(memory: Any) -> Any:
    """Return the bytes of memory, in the order in which they lie there."""
    if isinstance(memory, _torch.Tensor):
        memory = memory.detach().numpy()
    if isinstance(memory, np.ndarray):
        return memory.view(np.ndarray).ravel(order="K").view(np.uint8)
    return memory


def _start_of(memory: Any) -> int:
    """Return where memory starts, to compare with where a view of it does."""
    if isinstance(memory, _torch.Tensor):
        return int(memory.data_ptr())
    array = memory if isinstance(memory, np.ndarray) else np.frombuffer(memory, np.uint8)
    return int(array.__array_interface__["data"][0])


def _twin_memory(start: int, nbytes: int, copier: Copier) -> Any:
    """Return the copy of memory that a tensor and an array are both views of; None for none yet."""
    found = copier.memories.get(start)
    return None if found is None or found[1].nbytes != nbytes else found[1]


def copy_tensor(value: Any, copier: Copier) -> Steps:
    """Copy a tensor of the CPU, as a view of the copy of its storage.

    Shared are those that are trained, and those without memory of their own: on a device, sparse,
    quantized, nested, or of a class with operators of its own.
    """
    if copier.looks or not _torch.owns_plain_memory(value):
        return copier.data(value)
    storage = _torch.storage_of(value)
    start, own = storage.data_ptr(), copier.storages.get(storage.data_ptr())
    if own is None and (memory := _twin_memory(start, storage.nbytes(), copier)) is not None:
        own = copier.storages[start] = storage, _torch.storage_over(memory)
    if own is None:
        if not copier.affords(storage.nbytes()):
            return copier.data(value)
        own = copier.storages[start] = storage, storage.clone()  # type: ignore[no-untyped-call]
        copier.memories[start] = storage, _torch.bytes_of_storage(own[1])
    twin = copier.keep(value, _torch.view_of_storage(value, own[1]))
    return (yield from copier.attributes(value, copier, twin))


def copy_buffer(value: Any, copier: Copier) -> Steps:
    """Copy a bytearray or an `array.array`, by the methods of that class."""
    nbytes = memoryview(value).nbytes
    if not copier.affords(nbytes):
        return copier.data(value)
    if isinstance(value, bytearray):
        twin: Any = bytearray.__new__(type(value))
        bytearray.extend(twin, value)
    else:
        twin = array.array.__new__(type(value), value.typecode, bytes(value))
    return (yield from copier.attributes(value, copier, copier.keep(value, twin)))


def copy_memoryview(value: Any, copier: Copier) -> Steps:
    """Make the same view of the copy of what it is a view of."""
    memory = value.obj
    twin = memory if value.readonly or not value.contiguous else (yield "obj", memory)
    if twin is memory:
        return copier.keep(value, value)
    offset = _start_of(value) - _start_of(memory)
    flat = memoryview(twin).cast("B")[offset : offset + value.nbytes]
    return copier.keep(value, flat.cast(value.format, value.shape))


def copy_file_in_memory(value: Any, copier: Copier) -> Steps:
    """Copy a `BytesIO` or `StringIO` with its place; a `BytesIO` shares the bytes."""
    if value.closed:
        return copier.keep(value, value)
    of_bytes = isinstance(value, io.BytesIO)
    base: Any = io.BytesIO if of_bytes else io.StringIO
    twin = copier.keep(value, base.__new__(type(value)))
    if not of_bytes:
        base.__setstate__(twin, (*base.__getstate__(value)[:3], None))
    else:
        base.__init__(twin, base.getvalue(value))
        base.seek(twin, base.tell(value))
    return (yield from copier.attributes(value, copier, twin))


def copy_c_data(value: Any, copier: Copier) -> Steps:
    """Copy a number, an array or a structure of `ctypes` that has memory of its own."""
    nbytes = memoryview(value).nbytes
    if not value._b_needsfree_ or not copier.affords(nbytes):  # documented
        return copier.keep(value, value)
    twin = copier.keep(value, type(value).from_buffer_copy(value))
    return (yield from copier.attributes(value, copier, twin))


def is_memory(value: Any) -> bool:
    """Whether an object is memory that is copied as a whole."""
    return isinstance(value, (np.ndarray, bytearray, array.array, io.BytesIO, _torch.Tensor))


def is_written(value: Any, twin: Any) -> bool:
    """Whether memory has other bytes than the copy that was made of it."""
    if isinstance(value, np.ndarray) and value.dtype.hasobject:
        return False  # its entries are compared
    with suppress(Exception):  # of a class's own
        return _content(value) != _content(twin)
    return False


def _content(value: Any) -> bytes:
    if isinstance(value, _torch.Tensor):
        value = value.numpy()
    if isinstance(value, np.ndarray):
        return np.ndarray.tobytes(value)
    return value.getvalue() if isinstance(value, io.BytesIO) else bytes(value)
