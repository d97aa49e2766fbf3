"""A few random values, written into a tensor without torch: the same as torch's, bit for bit.

To call one of torch's operators from a kernel in Python takes 1 us, and most samples draw single
numbers, of one word each.  All other tensors and arguments are left to torch's own operator.

Most tensors are new: `torch.rand` and the like have just made them, and nobody else has them yet.
Of a new one little is to be asked, which saves 0.3 us.

Source: ``uniform_real_distribution`` and ``uniform_int_from_to_distribution`` in
aten/src/ATen/core/DistributionsHelper.h; `writes_as_torch_does` tries whether they are still so.
"""

from __future__ import annotations

import ctypes
import sys
from sys import getrefcount
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, NoReturn

import torch
from torch.autograd import forward_ad

if TYPE_CHECKING:
    from collections.abc import Callable

    Kernel = Callable[..., Any]

__all__ = ["WRITING", "References", "writes_as_torch_does"]

_FEW = 4  # values: of more, most time goes into making them
_RANGE = 1 << 28  # from here on, torch may draw two words for an integer

# None where torch lacks one: that is noticed below.
_increment_version: Any = getattr(torch._C, "_increment_version", None)
_modes: Any = getattr(torch._C, "_len_torch_dispatch_stack", None)
_level: Any = getattr(torch._C._functorch, "maybe_current_level", None)
_tracing: Any = getattr(torch._C, "_is_tracing", None)
_Tensor, _float32, _int64 = torch.Tensor, torch.float32, torch.int64
# The whole memory of the process, as values: it takes less to write one so than by ctypes.
_memory = memoryview((ctypes.c_char * (sys.maxsize // 2 + 1)).from_address(0)).cast("B")
_floats, _ints = _memory.cast("f"), _memory.cast("q")  # by a fourth, an eighth of the address


class References:
    """How a kernel knows a tensor that an operator has just made: by its references in Python.

    What has more of them belongs to somebody in Python.  What only C++ has counts as new, too.  So
    TorchScript that overwrites what a gradient needs gets no error, as it would from torch, but a
    wrong gradient.

    Attributes:
        new: References to the object of a new tensor; -1 as long as they are not known.
        seen: References to the last object whose tensor was not known to be new.
    """

    __slots__ = ("new", "seen")

    def __init__(self) -> None:
        self.new = self.seen = -1

    def learn(self, name: str) -> None:
        """Learn the references; call where the kernel is in use, but is given no words.

        Args:
            name: Of the kernel in `WRITING`.
        """
        if sys.gettrace() is not None or sys.getprofile() is not None:
            return  # such a function may hold references of its own
        make, dtype = (_rand, _float32) if name == "uniform_" else (_randint, _int64)
        bounds = () if name == "uniform_" else (0, 9)
        change = getattr(torch.Tensor, name.partition(".")[0])
        owned = torch.empty(1, dtype=dtype, device="cpu")
        seen = []
        for draw in (
            make,
            lambda: change(owned, *bounds),
            lambda: change(torch.empty(1, dtype=dtype, device="cpu"), *bounds),
        ):
            self.seen = -1
            draw()
            seen.append(self.seen)
        if 0 < seen[0] < min(seen[1:]):
            self.new = seen[0]


def _rand() -> Any:
    return torch.rand(1, dtype=_float32, device="cpu")


def _randint() -> Any:
    return torch.randint(0, 9, (1,), device="cpu")


def _uniform(here: Any, otherwise: Kernel, references: References) -> Kernel:
    """Return a kernel for ``uniform_`` that writes values in [0, 1).

    Args:
        here: A `threading.local`; its ``stream`` has the thread's random words, or is None.
        otherwise: The kernel for all that is not written.
        references: To the objects of new tensors.
    """

    # The checks stand in each kernel: a call for them all would cost as much as most of them.
    def kernel(tensor: Any, *args: Any, generator: Any = None) -> Any:
        if (
            generator is None
            and not args
            and tensor.dtype is _float32
            and (stream := here.stream) is not None
            and tensor.is_cpu
            and ((count := tensor.numel()) == 1 or (1 < count <= _FEW and tensor.is_contiguous()))
            and not (tensor.requires_grad or tensor._is_view())
        ):
            counted = getrefcount(tensor)
            try:
                if counted == references.new:
                    address = tensor.data_ptr()
                else:
                    references.seen = counted
                    address = _address(tensor)
            except RuntimeError:  # it has no memory, or no version: one of torch.func's, say
                address = 0
            if address and (at := stream.take_torch_words(count)) >= 0:
                words, place = stream.torch_words, address >> 2
                _floats[place] = (words[at] & 0xFFFFFF) * 2.0**-24
                for more in range(1, count) if count > 1 else ():  # a loop takes 0.1 us
                    _floats[place + more] = (words[at + more] & 0xFFFFFF) * 2.0**-24
                return tensor
        return otherwise(tensor, *args, generator=generator)

    return kernel


def _random_from(here: Any, otherwise: Kernel, references: References) -> Kernel:
    """Return a kernel for ``random_.from`` that writes integers of 64 bits; see `_uniform`."""

    def kernel(tensor: Any, low: int, high: Any = None, *, generator: Any = None) -> Any:
        if (
            generator is None
            and high is not None
            and tensor.dtype is _int64
            and 0 < (span := high - low) < _RANGE
            and (stream := here.stream) is not None
            and tensor.is_cpu
            and ((count := tensor.numel()) == 1 or (1 < count <= _FEW and tensor.is_contiguous()))
            and not (tensor.requires_grad or tensor._is_view())
        ):
            counted = getrefcount(tensor)
            try:
                if counted == references.new:
                    address = tensor.data_ptr()
                else:
                    references.seen = counted
                    address = _address(tensor)
            except RuntimeError:
                address = 0
            if address and (at := stream.take_torch_words(count)) >= 0:
                words, place = stream.torch_words, address >> 3
                _ints[place] = words[at] % span + low
                if count > 1:
                    _ints[place + 1] = words[at + 1] % span + low
                    for more in range(2, count) if count > 2 else ():
                        _ints[place + more] = words[at + more] % span + low
                return tensor
        return otherwise(tensor, low, high, generator=generator)

    return kernel


def _address(tensor: Any) -> int:
    """Return the address to write the values of a tensor to; 0 where torch has to write them.

    Raises:
        RuntimeError: The tensor has no memory, or no version.
    """
    # Modes and tracers take operators, and under torch.func a tensor may stand for many.  torch
    # refuses to write a tensor of inference mode outside of it.  Forward-mode gradients have a
    # tangent to be written.
    if (
        type(tensor) is not _Tensor
        or _level() is not None
        or _modes()
        or _tracing()
        or tensor.is_inference()
        or forward_ad._current_level >= 0
    ):
        return 0
    address: int = tensor.data_ptr()
    if address % 8:  # memory of somebody else
        return 0
    _increment_version((tensor,))  # a gradient may need the values that it had
    return address


WRITING: dict[str, Callable[..., Kernel]] = {
    "uniform_": _uniform,
    "random_.from": _random_from,
}


def writes_as_torch_does(generator: Callable[[], Any], drawn: memoryview) -> bool:
    """Return whether these kernels write what torch's operators draw.

    Args:
        generator: Returns a ``torch.Generator`` that draws certain words next.
        drawn: These words, `_FEW` of 32 bits.
    """

    class Known:
        torch_words = drawn
        take_torch_words = staticmethod(lambda count: 0)  # noqa: ARG005  # as a stream's

    def refuse(*_: Any, **__: Any) -> NoReturn:
        raise NotImplementedError

    here, given = SimpleNamespace(stream=Known), {"uniform_": (), "random_.from": (-7, 1000)}
    for name, args in given.items():
        dtype = torch.int64 if args else torch.float32
        for count in (1, _FEW):
            # The user may have set another device, or be in inference mode, whose tensors are not
            # written.
            with torch.inference_mode(mode=False):
                expected, written = (
                    torch.empty(count, dtype=dtype, device="cpu") for _ in range(2)
                )
            getattr(expected, name.partition(".")[0])(*args, generator=generator())
            try:
                WRITING[name](here, refuse, References())(written, *args)
            except Exception:  # noqa: BLE001  # whatever torch has changed
                return False
            if not torch.equal(written, expected):
                return False
    return True
