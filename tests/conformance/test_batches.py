"""Datasets, samplers, collate functions and their errors: all that can be seen is torch's."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from support.patience import PATIENCE, Spawn
from support.pictures import picture
from torch.utils.data import (
    BatchSampler,
    ConcatDataset,
    RandomSampler,
    StackDataset,
    Subset,
    WeightedRandomSampler,
    default_collate,
    random_split,
)
from torch.utils.data._utils.collate import default_collate_fn_map

from conformance.datasets import Endless, Raises, Samples, WholeBatches
from conformance.loading import THREADS, MakeLoader, batches, errors, outcomes, story
from threadloader import ThreadLoader

Alike = Callable[..., Any]

TEN = Samples(range(10))
PAIRS = [(torch.full((2,), float(n)), n, str(n)) for n in range(7)]
KINDS = (Samples, WholeBatches)

# Datasets ----------------------------------------------------------------------------------------


class OnlyWhole:
    def __len__(self) -> int:
        return 4

    def __getitems__(self, indices: list[int]) -> list[int]:
        return [-index for index in indices]


class Hidden(WholeBatches):
    __getitems__ = None


DATASETS: dict[str, tuple[Any, dict[str, Any]]] = {
    "list": (list(range(5)), {}),
    "text": ("text", {}),
    "dict": ({"a": 1, "b": 2}, {"sampler": ["b", "a", "b"]}),
    "dict without a key": ({"a": 1}, {"sampler": ["missing", "a"]}),
    "no length, but a sampler": (Endless(), {"sampler": [5, 8]}),
    "nothing to shuffle": ([], {"shuffle": True}),
    "only __getitems__": (OnlyWhole(), {}),
    "__getitems__ that is None": (Hidden(PAIRS), {}),
}


@pytest.mark.parametrize("case", DATASETS)
def test_a_dataset_may_be_whatever_torch_takes(case: str, alike: Alike) -> None:
    dataset, arguments = DATASETS[case]
    alike(lambda loader: loader(dataset, 2, **arguments))
    alike(lambda loader: loader(dataset, None, **arguments))


def test_a_dataset_without_length_or_sampler_is_the_same_error(alike: Alike) -> None:
    alike(lambda loader: loader(Endless(), 2))


CHANGES: dict[str, Callable[[list[Any]], Any]] = {
    "list": list,
    "tuple": tuple,
    "iterator": iter,
    "dict": lambda samples: dict(enumerate(samples)),
    "array": lambda samples: torch.tensor([sample[1] for sample in samples]),
    "one too few": lambda samples: samples[1:],
    "one sample as the batch": lambda samples: samples[0],
    "backwards": lambda samples: samples[::-1],
}


@pytest.mark.parametrize("case", CHANGES)
def test_what_getitems_returns_is_collated_or_reaches_collate_fn(case: str, alike: Alike) -> None:
    dataset = WholeBatches(PAIRS, CHANGES[case])
    for arguments in (
        {"batch_size": 3},
        {"batch_size": None},
        {"batch_size": 3, "collate_fn": type},
    ):
        alike(lambda loader, arguments=arguments: loader(dataset, **arguments))


class ReadSamples(WholeBatches):
    """A dataset whose batches tell what ``__getitems__`` was called with."""

    def __getitems__(self, indices: Any) -> Any:
        if isinstance(indices, Iterator):
            indices = list(indices)
        return [f"{type(indices).__name__} {indices}"]


def test_getitems_is_called_with_what_the_batch_sampler_gave(alike: Alike) -> None:
    def build(loader: MakeLoader) -> Any:
        kinds = (list, tuple, set, iter, torch.tensor, lambda pair: slice(*pair), min)
        return loader(ReadSamples(PAIRS), batch_sampler=[kind([2, 3]) for kind in kinds])

    assert len(batches(alike(build))) == 14


WRAPPERS: dict[str, Callable[[Any], Any]] = {
    "Subset": lambda dataset: Subset(dataset, [5, 1, 3]),
    "Subset with an index too large": lambda dataset: Subset(dataset, [5, 99, 3]),
    "ConcatDataset": lambda dataset: ConcatDataset([dataset, Subset(dataset, [1]), dataset]),
    "StackDataset": lambda dataset: StackDataset(dataset, Subset(dataset, range(7))),
    "StackDataset by name": lambda dataset: StackDataset(x=dataset, y=dataset),
    "random_split": lambda data: random_split(data, [3, 4], torch.Generator().manual_seed(1))[1],
}


@pytest.mark.parametrize("case", WRAPPERS)
def test_torch_s_wrappers(case: str, alike: Alike) -> None:
    for kind in KINDS:
        for batch_size in (2, None):
            alike(lambda make, k=kind, b=batch_size: make(WRAPPERS[case](k(PAIRS)), b))


# Order -------------------------------------------------------------------------------------------


class Restless:
    """A sampler that draws random numbers when it is asked for an iterator, and at each index."""

    def __iter__(self) -> Iterator[int]:
        first = int(torch.randint(10, ()))
        return iter(lambda: (first + int(torch.randint(10, ()))) % 11, 10)


class Unsized:
    def __init__(self, entries: Sequence[Any]) -> None:
        self.entries = entries

    def __iter__(self) -> Iterator[Any]:
        yield from self.entries


class Indexed:
    """A sampler that is iterable by Python's older protocol only."""

    def __init__(self, entries: Sequence[Any]) -> None:
        self.entries = entries

    def __getitem__(self, position: int) -> Any:
        return self.entries[position]

    def __len__(self) -> int:
        return len(self.entries)


SAMPLERS: dict[str, Callable[[], Any]] = {
    "list": lambda: [3, 1, 1, 9],
    "generator, spent after one epoch": lambda: (index for index in (5, 3, 4)),
    "without a length": lambda: Unsized([7, 8, 9]),
    "by __getitem__": lambda: Indexed([7, 8, 9]),
    "that draws from torch": Restless,
    "RandomSampler with replacement": lambda: RandomSampler(TEN, replacement=True, num_samples=7),
    "WeightedRandomSampler": lambda: WeightedRandomSampler([0.1, 0.0, 0.9, 3.0], 6),
}
BATCH_SAMPLERS: dict[str, Callable[[], Any]] = {
    "of varying sizes": lambda: [[0], [1, 2, 3], [4, 5]],
    "of tuples": lambda: [(0, 1), (2,)],
    "of tensors": lambda: torch.arange(6).reshape(3, 2),
    "of iterators": lambda: [iter([0, 1]), iter([2])],
    "with an empty batch": lambda: [[0, 1], [], [2]],
    "with something else": lambda: [[0], 1, None, [2]],
    "without a length": lambda: Unsized([[0, 1], [2]]),
    "by __getitem__": lambda: Indexed([[0, 1], [2]]),
    "BatchSampler": lambda: BatchSampler(RandomSampler(TEN), 3, drop_last=True),
}


@pytest.mark.parametrize("case", SAMPLERS)
def test_a_sampler(case: str, alike: Alike) -> None:
    for batch_size in (3, None):
        alike(lambda loader, b=batch_size: loader(TEN, sampler=SAMPLERS[case](), batch_size=b))


@pytest.mark.parametrize("case", BATCH_SAMPLERS)
def test_a_batch_sampler(case: str, alike: Alike) -> None:
    alike(lambda loader: loader(TEN, batch_sampler=BATCH_SAMPLERS[case]()))


def test_a_generator_decides_the_order(alike: Alike) -> None:
    for batch_size in (1, 4, None):

        def build(loader: MakeLoader, batch_size: int | None = batch_size) -> Any:
            generator = torch.Generator().manual_seed(7)
            return loader(TEN, batch_size, shuffle=True, generator=generator)

        assert "generator's next" in alike(build)
    first, second = alike(build)["epochs"]
    assert first != second


class Wrapped:
    """A loader that is iterated in another way."""

    def __init__(self, loader: Any, begin: Callable[[Any], Iterator[Any]]) -> None:
        self.loader = loader
        self.generator = loader.generator
        self.begin = begin

    def __iter__(self) -> Iterator[Any]:
        return self.begin(self.loader)


def after_another(loader: Any) -> Iterator[Any]:
    """Break off one epoch before the next."""
    next(iter(loader))
    return iter(loader)


@pytest.mark.parametrize(
    "begin", [after_another, lambda loader: zip(loader, loader, strict=True)], ids=["broken", "two"]
)
def test_each_iterator_draws_as_much_as_torch_s(begin: Any, alike_workers: Alike) -> None:
    def build(make: MakeLoader) -> Any:
        return Wrapped(make(TEN, 4, shuffle=True, generator=torch.Generator()), begin)

    assert len(batches(alike_workers(partial(story, build), 2))) == 6


@pytest.mark.parametrize("persistent", [False, True])
def test_batches_and_random_state_are_those_of_worker_processes(
    persistent: bool, alike_workers: Alike
) -> None:
    # torch seeds persistent workers once, so that later epochs draw the sampler's seed alone.
    def run(make: MakeLoader) -> Any:
        made = [(torch.full((2,), float(n)), {"label": n, "name": str(n)}) for n in range(11)]
        torch.manual_seed(1)
        loader = make(Samples(made), 3, shuffle=True, persistent_workers=persistent)
        return [list(outcomes(loader)) for _ in range(3)], torch.rand(()).item()

    alike_workers(run, 2)


# Collating ---------------------------------------------------------------------------------------

OBJECTS = [object() for _ in range(5)]
COLLATE_FNS: dict[str, Callable[[Any], Any]] = {
    "type": type,
    "None": lambda samples: None,  # noqa: ARG005
    "generator": lambda samples: list(reversed(samples)),
    "changes its argument": lambda samples: samples.pop(),
    "fails": lambda samples: 1 // (2 not in samples),
}


@pytest.mark.parametrize("case", COLLATE_FNS)
def test_a_collate_fn(case: str, alike: Alike) -> None:
    for size in (1, 2, 6, None):
        alike(lambda make, s=size: make(Samples(range(6)), s, collate_fn=COLLATE_FNS[case]))


def test_a_collate_fn_gets_the_samples_themselves_and_may_leave_some_out(alike: Alike) -> None:
    def identity(samples: list[Any]) -> list[int]:
        return [OBJECTS.index(sample) for sample in samples]

    def skip_none(samples: list[Any]) -> Any:
        return default_collate([sample for sample in samples if sample is not None])

    assert not errors(alike(lambda loader: loader(Samples(OBJECTS), 2, collate_fn=identity)))
    told = alike(lambda loader: loader(Samples([1, None, 3, None, None]), 2, collate_fn=skip_none))
    assert errors(told) == [IndexError] * 2  # of the batch that is left empty


class Celsius:
    def __init__(self, degrees: float) -> None:
        self.degrees = degrees


class Labelled(torch.Tensor):
    """As MONAI's MetaTensor, and torchvision's images."""


EXTENSIONS: dict[type, tuple[Callable[..., Any] | None, Callable[[int], Any]]] = {
    Celsius: (lambda batch, **_: [each.degrees for each in batch], lambda n: (Celsius(n), n)),
    torch.Tensor: (lambda batch, **_: sum(batch), lambda n: (torch.ones(2), n)),
    np.ndarray: (lambda batch, **_: f"{len(batch)} arrays", lambda n: (np.ones(2), n)),
    int: (lambda batch, **_: f"{len(batch)} ints", lambda n: (n, str(n))),
    str: (lambda batch, **_: f"{len(batch)} texts", lambda n: (n, str(n))),
    Labelled: (
        lambda batch, **_: [len(batch)],
        lambda n: (torch.ones(2).as_subclass(Labelled), torch.ones(2), n),
    ),
    np.int64: (lambda batch, **_: f"{len(batch)} numbers", np.int64),
    float: (None, float),  # taken out of the map
}


@pytest.mark.parametrize("kind", EXTENSIONS, ids=lambda kind: kind.__name__)
def test_torch_s_map_of_collate_functions_is_used_as_it_is_then(
    kind: type, alike: Alike, monkeypatch: pytest.MonkeyPatch
) -> None:
    collate, sample = EXTENSIONS[kind]
    if collate is None:
        monkeypatch.delitem(default_collate_fn_map, kind)
    else:
        monkeypatch.setitem(default_collate_fn_map, kind, collate)
    made = Samples([sample(number) for number in range(5)])
    extended = alike(lambda loader: loader(made, 2))
    monkeypatch.undo()
    assert alike(lambda loader: loader(made, 2)) != extended


# Errors ------------------------------------------------------------------------------------------


class TwoArgumentsError(Exception):
    def __init__(self, first: int, second: int) -> None:
        super().__init__(first, second)


@dataclass(frozen=True)
class FrozenError(Exception):
    """An error that refuses attributes: a traceback or a note cannot be set from outside."""

    code: int


def _noted(notes: Any) -> Exception:
    error = ValueError("noted before")
    error.__notes__ = notes
    return error


ERRORS: dict[str, Callable[[], BaseException]] = {
    "ValueError": lambda: ValueError("bad sample"),
    "of two arguments": lambda: TwoArgumentsError(1, 2),
    "StopAsyncIteration": StopAsyncIteration,
    "group": lambda: ExceptionGroup("several", [ValueError(1)]),
    "frozen": lambda: FrozenError(3),
    "with a note": lambda: _noted(["a note"]),
    "with notes that are no list": lambda: _noted("text"),
}


@pytest.mark.parametrize("case", ERRORS)
def test_a_sample_that_fails_fails_its_batch_alone(case: str, alike: Alike) -> None:
    made = [0, 1, 2, Raises(ERRORS[case]), 4]
    for kind in KINDS:
        for batch_size in (2, None):
            told = alike(lambda make, kind=kind, b=batch_size: make(kind(made), b))
            assert len(errors(told)) == 2


LOOP: list[Any] = []
LOOP.append(LOOP)


@pytest.mark.parametrize(
    "made",
    [[[1], LOOP, 2, 3], [{torch.ones(2): 1}, {torch.ones(2): 1}, 2, 3]],
    ids=["a list in itself", "keys with no truth value"],
)
def test_samples_that_cannot_be_compared_fail_their_batch_alone(
    made: list[Any], spawn: Spawn
) -> None:
    for threads in THREADS:
        loader = ThreadLoader(Samples(made), 2, threads=threads)
        first, second = spawn(lambda loader=loader: outcomes(loader)).result(PATIENCE)
        assert first[0] == "error"
        assert second == ("batch", picture(torch.tensor([2, 3])))
