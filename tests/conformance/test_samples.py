"""Batches of every kind of sample: the same types, dtypes, shapes and values, or the same error."""

from __future__ import annotations

import array
import time
import types
from collections import Counter, UserDict, UserList, defaultdict, deque
from collections.abc import Callable
from dataclasses import dataclass
from decimal import Decimal
from enum import IntEnum
from pathlib import Path
from typing import Any, Self

import numpy as np
import pytest
import torch

from conformance.containers import Frozen, Labelled, Point, Unmakable
from conformance.datasets import Samples
from conformance.loading import THREADS, batches, errors, ours, outcomes, torchs

ROWS = 5
EVERY_CODE = "?bBhHiIlLqQefdgFDG"
EVERY_DTYPE = [
    *(torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64),
    *(torch.uint16, torch.uint32, torch.uint64, torch.float16, torch.bfloat16),
    *(torch.float32, torch.float64, torch.complex64, torch.complex128, torch.float8_e4m3fn),
]


class Finite(Point):
    """A named tuple that converts what it is given."""

    def __new__(cls, x: Any, y: Any) -> Self:
        return super().__new__(cls, x, torch.as_tensor(y))


@dataclass
class Record:
    x: int


class Level(IntEnum):
    LOW = 0
    HIGH = 1


class Tagged(torch.Tensor):
    pass


class View(np.ndarray):
    pass


def _grid(number: int) -> torch.Tensor:
    return torch.arange(number, number + 24.0).reshape(2, 3, 4)


def _memmap(number: int) -> np.memmap[Any, Any]:
    shared = np.memmap(Path(__file__), dtype=np.uint8, mode="c", shape=(4,))
    shared[:] = number
    return shared


REGULAR: dict[str, Callable[[int], Any]] = {
    "zero-size tensor": lambda n: torch.empty(3, 0, n * 0 + 2),
    "transposed tensor": lambda n: _grid(n).permute(2, 0, 1),
    "strided tensor": lambda n: _grid(n)[:, ::2, 1:],
    "expanded tensor": lambda n: torch.tensor([n]).expand(2, 3),
    "tensor that requires grad": lambda n: torch.full((2,), float(n), requires_grad=True),
    "Parameter": lambda n: torch.nn.Parameter(torch.full((2,), float(n))),
    "tensor subclass": lambda n: torch.full((2,), n).as_subclass(Tagged),
    "conjugated tensor": lambda n: torch.tensor([1j, n]).conj(),
    "negated tensor": lambda n: torch.tensor([1j, n]).conj().imag,
    "sparse tensor": lambda n: torch.full((2,), n).to_sparse(),
    "zero-size array": lambda n: np.empty((0, n * 0 + 2)),
    "byte-swapped array": lambda n: np.array([n], np.dtype(np.int32).newbyteorder()),
    "object array": lambda n: np.array([n, None]),
    "array of str": lambda n: np.array([str(n)]),
    "array of bytes": lambda n: np.array([str(n).encode()]),
    "array of dates": lambda n: np.array([n], "M8[D]"),
    "structured array": lambda n: np.array([(n, n)], "i4, f8"),
    "array subclass": lambda n: np.full(2, n).view(View),
    "masked array": lambda n: np.ma.masked_equal([n, 1], 1),
    "memmap": _memmap,
    "str scalar": np.str_,
    "date scalar": lambda n: np.datetime64(n, "D"),
    "void scalar": lambda n: np.array([(n, n)], "i4, f8")[0],
    "largest int": lambda n: 2**63 - 1 - n,
    "int beyond 63 bits": lambda n: 2**63 + n,
    "int beyond 64 bits": lambda n: 2**64 + n,
    "complex": complex,
    "IntEnum": lambda n: Level(n % 2),
    "Decimal": Decimal,
    "bytearray": lambda n: bytearray([n, n]),
    "array.array": lambda n: array.array("i", [n, n]),
    "None": lambda n: None,  # noqa: ARG005
    "set": lambda n: {n},
    "dict of other keys": lambda n: {0: n, None: -n, ("t", 1): {1.5: n}},
    "empty dict": lambda n: {},  # noqa: ARG005
    "dict subclass": lambda n: Labelled(a=n),
    "defaultdict": lambda n: defaultdict(list, b=n, a=n),
    "Counter": lambda n: Counter({"a": n}),
    "UserDict": lambda n: UserDict(a=n),
    "mapping proxy": lambda n: types.MappingProxyType({"a": n}),
    "own Mapping": lambda n: Frozen({"a": n, "b": [n]}),
    "own Mapping of another signature": lambda n: Unmakable({"a": n}, None),
    "empty list": lambda n: [],  # noqa: ARG005
    "empty tuple": lambda n: (),  # noqa: ARG005
    "namedtuple with a constructor": lambda n: Finite(n, [n]),
    "torch.Size": lambda n: torch.Size([n, n]),
    "struct sequence": time.gmtime,
    "torch's return type": lambda n: torch.tensor([[n, 1], [2, 3]]).max(0),
    "dataclass": Record,
    "range": lambda n: range(n, n + 3),
    "UserList": lambda n: UserList([n, str(n)]),
    "deque": lambda n: deque([n, n]),
    "one part that has no layout": lambda n: {"a": n, "b": np.array([None])},
    "an image and its label": lambda n: (_grid(n), n),
    "nested": lambda n: {"a": [(_grid(n), Point(n, {"s": str(n)}))], "b": ((), {}, [np.int8(n)])},
    "text inside sequences and dicts": lambda n: (
        "a",
        [str(n)],
        {"k": b"b", "l": ("c", {"m": "d"})},
    ),
}

_T = torch.tensor
IRREGULAR: dict[str, list[Any]] = {
    "shape, later": [torch.zeros(2)] * 3 + [torch.zeros(3)],
    "heights that add up to the same": [np.zeros(3), np.zeros(2), np.zeros(4)],
    "trailing shape": [np.zeros((2, 3)), np.zeros((2, 4))],
    "0-d then 1-d tensor": [_T(1.0), _T([2.0])],
    "0-d then 1-d array": [np.array(1.0), np.array([2.0])],
    "zero-size later": [torch.zeros(2), torch.zeros(0)],
    "dtype of tensors": [_T([1]), _T([1.5]), _T([2])],
    "the other 64-bit code later": [np.array([1], "L"), np.array([1], "Q")],
    "byte order": [np.array([1], "<i4"), np.array([1], ">i4")],
    "array of str later": [np.array([1]), np.array(["a"])],
    "tensor and array": [_T([1]), np.array([1])],
    "array and list": [np.array([1.0, 2.0]), [3.0, 4.0]],
    "number and 0-d array": [2.0, np.array(1.0)],
    "number and 0-d tensor": [2.0, _T(1.0)],
    "0-d tensor and number": [_T(1.0), 2.0],
    "bfloat16 later": [torch.zeros(2), torch.zeros(2, dtype=torch.bfloat16)],
    "double later": [torch.ones(2), torch.full((2,), 0.1, dtype=torch.double)],
    "bool later": [torch.ones(2), torch.ones(2, dtype=torch.bool)],
    "a tensor of one element, which could be broadcast": [torch.zeros(2), torch.ones(1)],
    "of inference mode later": [torch.zeros(2), torch.inference_mode()(torch.ones)(2)],
    "requires grad later": [torch.zeros(2), torch.zeros(2, requires_grad=True)],
    "Parameter later": [torch.zeros(2), torch.nn.Parameter(torch.zeros(2))],
    "subclass later": [torch.zeros(2), torch.zeros(2).as_subclass(Tagged)],
    "sparse later": [torch.zeros(2), torch.zeros(2).to_sparse()],
    "meta later": [torch.zeros(2), torch.zeros(2, device="meta")],
    "conjugated later": [_T([1j]), _T([1j]).conj()],
    "negated later": [torch.ones(2), _T([1j, 2]).conj().imag],
    "expanded later": [torch.zeros(2, 3), torch.ones(1).expand(2, 3)],
    "bool then int": [True, 2],
    "int then bool": [2, True],
    "int then beyond 64 bits": [1, 2**64],
    "int then uint64": [1, 2**63],
    "str then bytes": ["a", b"b"],
    "int then None": [1, None],
    "int then IntEnum": [1, Level.HIGH],
    "int then NumPy's": [1, np.int64(2)],
    "NumPy's bool then bool": [np.True_, False],
    "NumPy's float32 then float64": [np.float32(0.1), np.float64(0.1)],
    "float then NumPy's float64": [0.1, np.float64(0.1)],
    "NumPy's uint64, large": [np.uint64(1), np.uint64(2**63)],
    "order of keys": [{"a": 1, "b": 2}, {"b": 3, "a": 4}, {"b": 5, "a": 6}],
    "equal keys": [{1: 1}, {True: 2}, {1.0: 3}],
    "dict then defaultdict": [{"a": 1, "b": 2}, defaultdict(int, a=2)],
    "defaultdict then fewer keys": [defaultdict(int, a=1), defaultdict(int)],
    "dict then list": [{0: 1}, [2]],
    "list then str": [["a", "b"], "cd"],
    "int then list": [1, [2]],
    "named tuple then tuple": [Point(1, 2), (3, 4)],
    "named tuple then its subclass": [Point(1, 2), Finite(3, 4)],
    "one odd leaf of many": [(_T([1.0]), {"k": [n, "s" if n == 3 else n]}) for n in range(ROWS)],
    "shapes that change and change back": [torch.zeros(n) for n in (2, 2, 2, 3, 3, 3, 2, 2, 2, 2)],
    "layouts that change": [*([1] * 4), *([{"a": 1}] * 4), *([(np.zeros(2),)] * 4), *([1] * 4)],
    "ragged for long, then regular": [[0] * n for n in range(30)] + [[0]] * 40,
}


@pytest.mark.parametrize("case", REGULAR)
def test_samples_of_one_kind(case: str, alike: Callable[..., Any]) -> None:
    made = Samples([REGULAR[case](number) for number in range(ROWS)])
    for batch_size in (2, None):
        told = alike(lambda loader, size=batch_size: loader(made, batch_size=size))
        assert len(batches(told)) + len(errors(told)) == 2 * (3 if batch_size == 2 else ROWS)


EVERY: dict[str, list[Any]] = {
    "tensors": [torch.tensor([[1, 1, 0]]).to(dtype) for dtype in EVERY_DTYPE],
    "arrays": [np.array([[1, 1, 0]], code) for code in EVERY_CODE],
    "scalars": [np.dtype(code).type(1) for code in EVERY_CODE],
}


@pytest.mark.parametrize("case", EVERY)
def test_samples_of_every_dtype(case: str, alike: Callable[..., Any]) -> None:
    made = Samples([sample for sample in EVERY[case] for _ in range(4)])
    alike(lambda loader: loader(made, batch_size=2))


def learned(samples: list[Any]) -> list[Any]:
    """Return samples that differ after a batch, and before one, of those that do not."""
    first, *rest = samples
    return [first, first, *rest, first, first]


@pytest.mark.parametrize("case", IRREGULAR)
def test_samples_that_differ_with_or_without_a_learned_layout(
    case: str, alike: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    for made in (IRREGULAR[case], learned(IRREGULAR[case])):
        alike(lambda loader, made=made: loader(Samples(made), batch_size=2))
        monkeypatch.setattr("threadloader._order.tickets.TICKET_SECONDS", 0.0)  # a ticket a row


class NeedsGrad:
    """Computes its samples, as one that runs a frozen network would."""

    def __init__(self) -> None:
        self.weight = torch.ones(2, requires_grad=True)

    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> torch.Tensor:
        return self.weight * index


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_samples_are_made_in_the_grad_mode_of_the_consumer(mode: Callable[[], Any]) -> None:
    # So it is with torch, in the calling process and in forked workers, which inherit the mode.
    names = ("requires grad later", "of inference mode later")
    for dataset in (NeedsGrad(), *(Samples(learned(IRREGULAR[name])) for name in names)):
        with mode():
            expected = list(outcomes(torchs(dataset, 2)))
            for threads in THREADS:
                assert list(outcomes(ours(threads)(dataset, 2))) == expected
