"""What is gathered from arrays and tensors is what torch's loader collates of their rows."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from support.patience import PATIENCE, Spawn
from support.pictures import picture
from torch.utils.data import (
    ConcatDataset,
    Dataset,
    RandomSampler,
    StackDataset,
    Subset,
    TensorDataset,
    random_split,
)
from torch.utils.data._utils import collate

from conformance.loading import THREADS, MakeLoader, batches, ours, torchs
from threadloader import ThreadLoader
from threadloader.datasets import ArrayDataset

Alike = Callable[..., Any]

SIZE = 9


def tensor(size: int = SIZE, width: int = 3) -> torch.Tensor:
    return torch.arange(size * width, dtype=torch.float32).reshape(size, width)


def array(size: int = SIZE, width: int = 3) -> Any:
    return tensor(size, width).numpy().copy()


def complexes() -> torch.Tensor:
    return torch.complex(tensor(), -tensor())


# Each is made anew for each loader, so that none sees what another did.
DATASETS: dict[str, Callable[[], Any]] = {
    "array": array,
    "array reversed": lambda: array()[::-1],
    "array byte-swapped": lambda: array().astype(">f4"),
    "array of dates": lambda: np.arange(SIZE).astype("M8[s]"),
    "array of objects": lambda: np.arange(SIZE).astype(object),
    "array of uint16": lambda: np.arange(SIZE, dtype=np.uint16),
    "tensor": tensor,
    "tensor strided": lambda: tensor(2 * SIZE)[::2, ::2],
    "tensor channels last": lambda: torch.rand(SIZE, 3, 4, 5, generator=torch.manual_seed(0)).to(
        memory_format=torch.channels_last
    ),
    "tensor bfloat16": lambda: tensor().bfloat16(),
    "tensor complex": complexes,
    "tensor conjugated": lambda: complexes().conj(),
    "tensor negated": lambda: complexes().conj().imag,
    "tensor sparse": lambda: tensor().to_sparse(),
    "tensor that requires grad": lambda: tensor().requires_grad_(),
    "tensor of a graph": lambda: tensor().requires_grad_() * 2,
    "tensor of inference mode": torch.inference_mode()(tensor),
    "tensor without rows": lambda: torch.zeros(0, 3),
    "parameter": lambda: torch.nn.Parameter(tensor()),
    "tensors": lambda: TensorDataset(tensor(), torch.arange(SIZE)),
    "tensors, one bfloat16": lambda: TensorDataset(tensor(), tensor().bfloat16()),
    "tensors, none": lambda: TensorDataset(torch.zeros(0), torch.zeros(0, 3)),
    "ArrayDataset of several": lambda: ArrayDataset(array(), np.arange(SIZE), array(SIZE, 1)),
    "ArrayDataset of both": lambda: ArrayDataset(tensor(), np.arange(SIZE), array()),
    "ArrayDataset of a dict": lambda: ArrayDataset({"x": tensor(), 1: np.arange(SIZE)}),
    "ArrayDataset, one bfloat16": lambda: ArrayDataset({"x": array(), "y": tensor().bfloat16()}),
    "Subset of a list": lambda: Subset(TensorDataset(tensor()), [4, 0, 8, 4]),
    "Subset of a range": lambda: Subset(tensor(), range(2, 7)),
    "Subset of an array": lambda: Subset(ArrayDataset(array(), tensor()), np.array([5, 5, 0])),
    "Subset of a tensor": lambda: Subset(TensorDataset(tensor()), torch.tensor([1, 7, 2])),
    "Subset of some out of range": lambda: Subset(TensorDataset(tensor()), [1, 2, 9, 3, -10, 4]),
    "Subset of bools": lambda: Subset(tensor(), [True, False, 2]),
    "Subset of odd ones": lambda: Subset(tensor(), [0, 1.0, "a", None, slice(0, 2), 3]),
    "Subset of a Subset": lambda: Subset(
        Subset(Subset(TensorDataset(tensor(), tensor()), range(8, 0, -1)), np.arange(6)), [5, -1, 0]
    ),
    "random split": lambda: random_split(
        TensorDataset(tensor()), [4, 5], torch.Generator().manual_seed(1)
    )[1],
    "ConcatDataset": lambda: ConcatDataset([TensorDataset(tensor()), TensorDataset(tensor() + 50)]),
    "StackDataset": lambda: StackDataset(TensorDataset(tensor()), tensor()),
}


@pytest.mark.parametrize("case", DATASETS)
def test_every_dataset(case: str, alike: Alike) -> None:
    for batch_size in (None, 4):
        alike(lambda loader, size=batch_size: loader(DATASETS[case](), size))


RANDOM = {
    "fewer": {"num_samples": 4},
    "more": {"num_samples": 13},
    "twice": {"num_samples": 18},
    "replaced, more": {"replacement": True, "num_samples": 40},
}


@pytest.mark.parametrize("arguments", RANDOM.values(), ids=RANDOM)
def test_random_samplers(arguments: dict[str, Any], alike: Alike) -> None:
    """What is drawn, too: the random state afterwards, and that of the sampler's generator."""
    for batch_size, own in ((None, True), (3, False), (5, True), (20, False), (20, True)):

        def build(loader: MakeLoader, size: Any = batch_size, own: bool = own) -> Any:
            generator = torch.Generator().manual_seed(3) if own else None
            dataset = TensorDataset(tensor(), torch.arange(SIZE))
            sampler = RandomSampler(dataset, generator=generator, **arguments)
            made = loader(dataset, size, sampler=sampler)
            made.generator = generator  # so that the story tells what it draws next
            return made

        assert batches(alike(build))


@pytest.mark.parametrize("batch_size", [2, 3, 9])
def test_without_threads_nothing_is_drawn_before_it_is_wanted(batch_size: int) -> None:
    """A sampler of two passes draws the second when its first index is asked for."""

    def drawn(make: MakeLoader) -> Iterator[Any]:
        generator = torch.Generator().manual_seed(3)
        sampler = RandomSampler(range(SIZE), num_samples=20, generator=generator)
        for batch in make(tensor(), batch_size, sampler=sampler):
            yield batch.tolist(), generator.get_state().tolist()

    assert list(drawn(ours(0))) == list(drawn(torchs))


# Subclasses --------------------------------------------------------------------------------------


class DoubledTensors(TensorDataset):
    def __getitem__(self, index: Any) -> Any:
        return tuple(2 * part for part in super().__getitem__(index))


class DoubledSubset(Subset[Any]):
    def __getitem__(self, index: Any) -> Any:
        return 2 * super().__getitem__(index)

    def __getitems__(self, indices: list[int]) -> list[Any]:
        return [self[index] for index in indices]


class DoubledArrays(ArrayDataset):
    def __getitem__(self, index: Any) -> Any:
        return 2 * super().__getitem__(index)


class DoubledTensor(torch.Tensor):
    def __getitem__(self, index: Any) -> Any:
        return 2 * self.as_subclass(torch.Tensor)[index]


class WholeTensors(TensorDataset):
    def __getitems__(self, indices: list[int]) -> list[Any]:
        return [(torch.tensor(float(index)),) for index in indices]


class Resembling(Dataset[Any]):
    """Has a Subset's attributes and is none."""

    def __init__(self) -> None:
        self.dataset, self.indices = tensor(), [3, 4]

    def __len__(self) -> int:
        return 2

    def __getitem__(self, index: int) -> Any:
        return self.dataset[self.indices[index]] * 2


SUBCLASSES = {
    "TensorDataset": lambda: DoubledTensors(tensor(), torch.arange(SIZE)),
    "Subset": lambda: DoubledSubset(tensor(), [1, 2, 3]),
    "ArrayDataset": lambda: DoubledArrays(array()),
    "Tensor": lambda: tensor().as_subclass(DoubledTensor),
    "TensorDataset with __getitems__": lambda: WholeTensors(tensor()),
    "alike in attributes": Resembling,
}


@pytest.mark.parametrize("case", SUBCLASSES)
def test_a_subclass_has_its_own_getitem(case: str, alike: Alike) -> None:
    assert batches(alike(lambda loader: loader(SUBCLASSES[case](), 2)))


# The rest of a loader ----------------------------------------------------------------------------


@pytest.mark.parametrize("dataset", ["tensors", "array", "ArrayDataset of both"])
def test_a_collate_function_is_given_what_torch_gives_it(
    dataset: str, alike: Alike, monkeypatch: pytest.MonkeyPatch
) -> None:
    make = DATASETS[dataset]
    for function in (list, len, lambda samples: [type(s) for s in samples]):
        alike(lambda loader, f=function: loader(make(), 4, shuffle=True, collate_fn=f))
    for kind in (torch.Tensor, np.ndarray, np.int64):
        monkeypatch.setitem(collate.default_collate_fn_map, kind, lambda batch, **_: len(batch))
        alike(lambda loader: loader(make(), 4))


@pytest.mark.parametrize("mode", [torch.enable_grad, torch.inference_mode, torch.no_grad])
def test_a_batch_is_part_of_no_graph_and_shares_no_memory(mode: Any) -> None:
    def run(make: MakeLoader) -> Any:
        x = tensor()
        with mode():
            made = [batch for (batch,) in make(TensorDataset(x), 4)]
        told = [(batch.requires_grad, batch.is_leaf, batch.grad_fn) for batch in made]
        with mode():
            for batch in made:
                batch.fill_(-1)
        return told, x.tolist()

    for threads in THREADS:
        assert run(ours(threads)) == run(torchs) == (run(torchs)[0], tensor().tolist())


# What the user changes ---------------------------------------------------------------------------


@pytest.mark.parametrize("crew", [{"threads": 0}, {"threads": 2}], ids=str)
def test_what_is_replaced_between_epochs_is_seen(crew: dict[str, Any], spawn: Spawn) -> None:
    def run(make: MakeLoader) -> Any:
        dataset = Subset(TensorDataset(tensor()), [0, 1, 2, 3])
        loader, told = make(dataset, 3), []
        for tensors, indices in [
            (None, None),
            ((tensor() + 50,), None),
            (None, [8, 7, 6, 5]),
            ((tensor(width=2), torch.arange(SIZE)), None),
            ((tensor().bfloat16(),), range(4)),
            ((torch.ones(SIZE, requires_grad=True),), None),
        ]:
            dataset.dataset.tensors = tensors or dataset.dataset.tensors
            dataset.indices = indices or dataset.indices
            told.append([picture(batch) for batch in loader])
        return told

    expected = run(torchs)
    assert spawn(run, lambda *args: ThreadLoader(*args, **crew)).result(PATIENCE) == expected


def test_without_threads_a_tensor_that_is_replaced_is_seen_at_once() -> None:
    """As without gathering: the loop may do so between two batches."""

    def run(make: MakeLoader) -> Any:
        dataset = TensorDataset(tensor())
        iterator = iter(make(dataset, 3))
        told = [next(iterator)[0].tolist()]
        dataset.tensors = (tensor() + 100,)
        return [*told, *(batch[0].tolist() for batch in iterator)]

    assert run(ours(0)) == run(torchs)
