"""The seam to real devices, as far as it can be seen without one: arguments, structures, memory."""

from __future__ import annotations

import math
import threading
import types
from collections import UserDict, defaultdict
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
import torch
from support.patience import PATIENCE, Spawn
from support.pictures import picture
from torch.utils.data._utils.pin_memory import pin_memory

from conformance.containers import Frozen, Labelled, Point, Unmakable
from threadloader import ThreadLoader, _torch
from threadloader._torch.accelerators import (
    moved,
    pinned,
    view_of,
)

META = torch.device("meta")

without_accelerator = pytest.mark.skipif(
    torch.accelerator.is_available(), reason="there is an accelerator"
)


# What `device=` may be

NO_DEVICES: list[Any] = ["gpu", "", "cuda:-1", "cuda:x", -1, 1.5, True, [], torch.float32]


@pytest.mark.parametrize("value", NO_DEVICES, ids=repr)
def test_what_is_no_device_is_refused_in_one_line_that_says_so(value: Any) -> None:
    kind = ValueError if isinstance(value, str) else TypeError
    with pytest.raises(kind, match=r"device must be what torch\.device\(\) accepts") as caught:
        ThreadLoader(range(3), device=value)
    assert "\n" not in str(caught.value)


def test_a_device_without_data_is_refused() -> None:
    with pytest.raises(ValueError, match="holds no data"):
        ThreadLoader(range(3), device=META)


@without_accelerator
@pytest.mark.parametrize(
    "value",
    ["cuda", "cuda:1", torch.device("cuda"), "mps", "xpu", 0, 3, np.int64(0)],
    ids=lambda value: f"{type(value).__name__} {value}",
)
def test_a_device_that_is_not_there_is_a_runtime_error_that_names_it(value: Any) -> None:
    with pytest.raises(RuntimeError) as caught:
        ThreadLoader(range(3), device=value)
    named = int(value) if isinstance(value, np.integer) else value
    assert f"device={named!r}" in str(caught.value)
    assert "without one: device='cuda' if torch.cuda.is_available()" in str(caught.value)


@pytest.mark.parametrize("threads", [0, 2])
def test_the_cpu_is_as_none(threads: int, spawn: Spawn) -> None:
    for value in (None, "cpu", "cpu:0", torch.device("cpu")):
        loader: ThreadLoader[Any] = ThreadLoader(range(5), 2, device=value, threads=threads)
        got = spawn(list, loader).result(PATIENCE)
        assert [batch.tolist() for batch in got] == [[0, 1], [2, 3], [4]]
        assert {batch.device.type for batch in got} == {"cpu"}


# The structure of what falls back


class Leaf:
    """Knows how to pin and to move itself, and tells what was done with it."""

    def __init__(self, done: str = "") -> None:
        self.done = done

    def __repr__(self) -> str:
        return f"Leaf({self.done})"

    def pin_memory(self) -> Leaf:
        return Leaf(self.done + "pinned ")

    def to(self, device: Any, non_blocking: bool = False) -> Leaf:
        return Leaf(self.done + f"{device} {non_blocking}")

    def record_stream(self, stream: Any) -> None:
        raise NotImplementedError(stream)


class Pair(tuple[Any, ...]):
    __slots__ = ()


class Row(Sequence[Any]):
    def __init__(self, parts: Sequence[Any]) -> None:
        self.parts = list(parts)

    def __getitem__(self, index: Any) -> Any:
        return self.parts[index]

    def __len__(self) -> int:
        return len(self.parts)


def labelled(parts: list[Any]) -> Any:
    batch = Labelled(a=parts)
    batch.label = "its own"
    return batch


STRUCTURES: dict[str, Callable[[list[Any]], Any]] = {
    "subclass of tuple": Pair,
    "named tuple": lambda parts: Point(parts, 1),
    "dict": lambda parts: {"a": parts, 1: "text", None: b"bytes"},
    "subclass of dict": labelled,
    "defaultdict": lambda parts: defaultdict(list, a=parts),
    "UserDict": lambda parts: UserDict(a=parts),
    "range": lambda parts: [range(3), *parts],
    "mapping proxy": lambda parts: types.MappingProxyType({"a": parts}),
    "mapping that can't be changed": lambda parts: Frozen({"a": parts}),
    "mapping that can't be made": lambda parts: Unmakable({"a": parts}, None),
    "sequence that can't be changed": Row,
    "others": lambda parts: [*parts, None, 1, 2.5, {3}, np.float32(1), "text"],
    "empty": lambda _: [[], (), {}],
}


def skeleton(value: Any) -> Any:
    """Return types, keys and leaves, and the attribute of a subclass."""
    return picture(value), getattr(value, "label", None)


keeps_tuples = pytest.mark.skipif(
    torch.__version__ < "2.8", reason="pinning by torch 2.7 makes lists of tuples"
)


@keeps_tuples
@pytest.mark.parametrize("name", STRUCTURES)
def test_a_structure_is_the_one_that_torch_pins(name: str) -> None:
    batch: Any = [Leaf(), "text", Leaf()]
    for _ in range(2):
        batch = STRUCTURES[name](batch if type(batch) is list else [batch, Leaf()])
        before = skeleton(batch)
        assert skeleton(pinned(batch)) == skeleton(pin_memory(batch, None))
        assert skeleton(batch) == before, "the batch itself is left alone"


@pytest.mark.parametrize("threads", [0, 2])
@pytest.mark.parametrize("output", ["torch", "numpy"])
def test_a_batch_of_a_collate_function_is_pinned_once_by_the_worker_that_made_it(
    threads: int, output: Any, monkeypatch: pytest.MonkeyPatch, spawn: Spawn
) -> None:
    monkeypatch.setattr(_torch, "can_pin", lambda _: True)
    makers = []

    class Batch(Leaf):
        def pin_memory(self) -> Leaf:
            makers.append((threading.current_thread(), torch.get_num_threads()))
            return super().pin_memory()

    loader = ThreadLoader(
        range(4), 2, collate_fn=lambda _: [Batch()], pin_memory=True, threads=threads, output=output
    )
    consumer, batches = spawn(lambda: (threading.current_thread(), list(loader))).result(PATIENCE)
    assert repr(batches) == "[[Leaf(pinned )], [Leaf(pinned )]]"
    assert len(makers) == 2
    for maker, intra_op_threads in makers:
        assert (maker is consumer) == (threads == 0)
        assert intra_op_threads == 1 or threads == 0


@without_accelerator
def test_a_loader_is_made_without_setting_the_device_up(monkeypatch: pytest.MonkeyPatch) -> None:
    def sets_up(*_: Any) -> Any:
        raise AssertionError

    cuda = torch.device("cuda")
    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda: cuda)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)  # by NVML
    for name in ("is_available", "device_count", "current_device_index"):
        monkeypatch.setattr(torch.accelerator, name, sets_up)
    for name in ("is_available", "init", "_lazy_init", "current_device", "Stream"):
        monkeypatch.setattr(torch.cuda, name, sets_up)
    for device in ("cuda", "cuda:1"):
        ThreadLoader(range(3), device=device).close()
    with pytest.raises(RuntimeError, match="there are 2"):
        ThreadLoader(range(3), device="cuda:2")


@pytest.mark.parametrize("name", STRUCTURES)
def test_every_leaf_is_moved_and_told_of(name: str) -> None:
    tensors: list[Any] = []
    leaf = torch.empty(2, 3, device=META)
    changed = moved(STRUCTURES[name]([leaf, Leaf(), leaf]), META, tensors)
    if name == "empty":
        assert (changed, tensors) == ([[], (), {}], [])
        return
    assert [type(tensor) for tensor in tensors] == [torch.Tensor, Leaf, torch.Tensor]
    assert tensors[1].done == "meta True"


class Plain:
    """Moves itself, and does no more: most batch classes are like that."""

    device = None

    def to(self, device: Any) -> Plain:
        copy = type(self)()
        copy.device = device
        return copy


class Half:
    """Leaves one of its tensors on the CPU, as a ``PackedSequence`` does."""

    def __init__(self, data: Any) -> None:
        self.data = data
        self.sizes = torch.ones(2)

    def to(self, device: Any, non_blocking: bool) -> Half:
        return Half(self.data.to(device, non_blocking=non_blocking))


class Broken(Plain):
    def to(self, device: Any, non_blocking: bool = False) -> Plain:
        raise LookupError(device, non_blocking)


def test_what_is_moved_is_told_of_if_it_is_memory_of_the_device() -> None:
    tensors: list[Any] = []
    for value in ("text", b"bytes", 1, 2.5, None, np.zeros(2), {3}, print):
        assert moved(value, META, tensors) is value, "what knows no device stays what it is"
    assert moved([Plain()], META, tensors)[0].device == META
    assert all(hasattr(tensor, "record_stream") for tensor in tensors)
    with pytest.raises(LookupError):
        moved({"a": [Broken()]}, META, tensors)
    tensors.clear()
    half = moved(Half(torch.ones(3)), META, tensors)
    assert [tensor is half.data for tensor in tensors] == [True]
    for layout in (torch.sparse_coo, torch.sparse_csr, torch.sparse_csc):
        tensors.clear()
        moved(torch.eye(4).to_sparse(layout=layout), torch.device("cpu"), tensors)
        assert len(tensors) >= 2
        assert {tensor.layout for tensor in tensors} == {torch.strided}


# Memory


def test_views_of_one_memory_may_be_changed_in_place_one_by_one() -> None:
    memory = torch.zeros(128, dtype=torch.uint8)
    inputs, labels = (view_of(memory, at, np.dtype("f4"), (8,)) for at in (0, 64))
    weight = torch.ones(8, requires_grad=True)
    loss = (inputs * weight).sum()  # saves the inputs
    labels -= 1
    loss.backward()
    assert weight.grad is not None


@pytest.fixture
def no_page_locks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ordinary memory in the place of page-locked, full of something."""

    def make(shape: tuple[int, ...], dtype: np.dtype[Any]) -> tuple[torch.Tensor, Any]:
        array = np.full(math.prod(shape) * dtype.itemsize, 0xAB, np.uint8).view(dtype)
        tensor = torch.from_numpy(array.reshape(shape))
        return tensor, tensor.numpy()

    monkeypatch.setattr("threadloader._torch.empty_pinned", make)


@pytest.mark.usefixtures("no_page_locks")
@pytest.mark.parametrize("kind", [np.int64, torch.tensor])
def test_a_pinned_leaf_outlives_its_batch(kind: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_torch, "can_pin", lambda _: True)
    samples = [(kind(number), "a") for number in range(4)]
    first, second = (batch[0][1:] for batch in ThreadLoader(samples, 2, pin_memory=True, threads=0))
    assert (first.tolist(), second.tolist()) == ([1], [3])
