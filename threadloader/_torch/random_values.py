"""A few random values, written into a tensor without torch: the same as torch's, bit for bit.

To call one of torch's operators from a kernel in Python takes 1 us, and most samples draw single
numbers, of one word each.  All other tensors and arguments are left to torch's own operator.

Source: ``uniform_real_distribution`` and ``uniform_int_from_to_distribution`` in
aten/src/ATen/core/DistributionsHelper.h; `writes_as_torch_does` tries whether they are still so.
"""

from __future__ import annotations

import ctypes
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, NoReturn

import torch
from torch.autograd import forward_ad

from threadloader._torch.random_ops import draws_alone

if TYPE_CHECKING:
    from collections.abc import Callable

    Kernel = Callable[..., Any]

__all__ = ["WRITING", "writes_as_torch_does"]

_FEW = 4  # values: of more, most time goes into making them
_RANGE = 1 << 28  # from here on, torch may draw two words for an integer
_UNIT = 2.0**-24
_MASK = (1 << 24) - 1

_increment_version: Any = getattr(torch._C, "_increment_version", None)  # None is noticed below
_Tensor, _float32, _int64 = torch.Tensor, torch.float32, torch.int64
_floats = tuple((ctypes.c_float * count).from_address for count in range(_FEW + 1))
_ints = tuple((ctypes.c_int64 * count).from_address for count in range(_FEW + 1))
_float, _int = ctypes.c_float.from_address, ctypes.c_int64.from_address


def _uniform(here: Any, otherwise: Kernel) -> Kernel:
    """Return a kernel for ``uniform_`` that writes values in [0, 1).

    Args:
        here: A `threading.local`; its ``stream`` has the thread's random words, or is None.
        otherwise: The kernel for all that is not written.
    """

    # The checks stand in each kernel: a call for them all would cost as much as most of them.
    # A view may be one of a leaf that requires a gradient, or of values with the opposite sign.
    # torch refuses to write a tensor of inference mode outside of it, and forward-mode gradients
    # have a tangent to be written.
    def kernel(tensor: Any, *args: Any, generator: Any = None) -> Any:
        if (
            generator is None
            and not args
            and tensor.dtype is _float32
            and (stream := here.stream) is not None
            and tensor.is_cpu
            and type(tensor) is _Tensor
            and not (tensor.requires_grad or tensor._is_view() or tensor.is_inference())
            and draws_alone()
            and forward_ad._current_level < 0
            and ((count := tensor.numel()) == 1 or (1 < count <= _FEW and tensor.is_contiguous()))
        ):
            try:
                address = tensor.data_ptr()
                _increment_version((tensor,))
            except RuntimeError:  # it has no memory, or no version: one of torch.func's, say
                address = 0
            if not address:
                pass
            elif count == 1:
                if (word := stream.torch_word()) >= 0:
                    _float(address).value = (word & _MASK) * _UNIT
                    return tensor
            elif words := stream.torch_words(count):
                _floats[count](address)[:] = [(word & _MASK) * _UNIT for word in words]
                return tensor
        return otherwise(tensor, *args, generator=generator)

    return kernel


def _random_from(here: Any, otherwise: Kernel) -> Kernel:
    """Return a kernel for ``random_.from`` that writes integers of 64 bits; see `_uniform`."""

    def kernel(tensor: Any, low: int, high: Any = None, *, generator: Any = None) -> Any:
        if (
            generator is None
            and high is not None
            and tensor.dtype is _int64
            and 0 < (span := high - low) < _RANGE
            and (stream := here.stream) is not None
            and tensor.is_cpu
            and type(tensor) is _Tensor
            and not (tensor._is_view() or tensor.is_inference())
            and draws_alone()
            and ((count := tensor.numel()) == 1 or (1 < count <= _FEW and tensor.is_contiguous()))
        ):
            try:
                address = tensor.data_ptr()
                _increment_version((tensor,))
            except RuntimeError:
                address = 0
            if not address:
                pass
            elif count == 1:
                if (word := stream.torch_word()) >= 0:
                    _int(address).value = word % span + low
                    return tensor
            elif words := stream.torch_words(count):
                _ints[count](address)[:] = [word % span + low for word in words]
                return tensor
        return otherwise(tensor, low, high, generator=generator)

    return kernel


WRITING: dict[str, Callable[[Any, Kernel], Kernel]] = {
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
        torch_words = staticmethod(lambda count: drawn[:count])
        torch_word = staticmethod(lambda: drawn[0])

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
                WRITING[name](here, refuse)(written, *args)
            except Exception:  # noqa: BLE001  # whatever torch has changed
                return False
            if not torch.equal(written, expected):
                return False
    return True
