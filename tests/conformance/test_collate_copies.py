"""The ways in which people write collate functions: with threads as with torch's processes."""

from __future__ import annotations

import dataclasses
from collections import defaultdict
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest
import torch
from support.patience import PATIENCE
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import DataLoader, Dataset, default_collate

from threadloader import ThreadLoader

if TYPE_CHECKING:
    from collections.abc import Callable

    from support.patience import Spawn

SIZE = 512
WORKERS = 4
BATCH = 4


class Texts(Dataset[Any]):
    """Sample ``i`` has ``1 + i % 50`` words; its method pads, with scratch state on self."""

    def __len__(self) -> int:
        return SIZE

    def __getitem__(self, index: int) -> Any:
        return torch.full((1 + index % 50,), index)

    def collate(self, samples: Any) -> Any:
        self.longest = max(map(len, samples))
        self.out = torch.zeros(len(samples), self.longest, dtype=torch.long)
        for row, sample in enumerate(samples):
            self.out[row, : len(sample)] = sample
        return self.out


class Pad:
    """A class to be called."""

    def __init__(self, inner: Any = None) -> None:
        self.inner = inner

    def __call__(self, samples: Any) -> Any:
        if self.inner is not None:
            return self.inner(samples)
        return self.collate(samples)

    collate = Texts.collate


class Module:
    """As Lightning's data modules: not to be called, and attached to a trainer."""

    def __init__(self) -> None:
        self.data = Texts()
        self.tokenizer = Tokenizer()
        self.trainer = {"module": self}

    def collate(self, samples: Any) -> Any:
        return self.tokenizer.pad(samples)


class Tokenizer:
    """As tokenizers: it has a length, which is set, and then obeyed."""

    length = 0

    def __call__(self, samples: Any) -> Any:
        return self.pad(samples)

    def pad(self, samples: Any) -> Any:
        self.length = max(map(len, samples))
        out = torch.zeros(len(samples), self.length, dtype=torch.long)
        for row, sample in enumerate(samples):
            out[row, : self.length] = torch.cat([sample, sample.new_zeros(self.length)])[
                : self.length
            ]
        return out


@dataclasses.dataclass
class DataCollator:
    """As Hugging Face's: a dataclass that has a tokenizer."""

    tokenizer: Tokenizer
    padding: bool = True

    def __call__(self, samples: Any) -> Any:
        return self.tokenizer(samples)


class Transforms(torch.nn.Module):
    """As Lightly's: a module that is called with a batch."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = torch.nn.Sequential(Pads())

    def forward(self, samples: Any) -> Any:
        return self.inner(samples)


class Pads(torch.nn.Module):
    collate = Texts.collate

    def forward(self, samples: Any) -> Any:
        return self.collate(samples)


def _pad(samples: Any, tokenizer: Tokenizer) -> Any:
    return tokenizer(samples)


def _factory(tokenizer: Tokenizer) -> Any:
    def collate(samples: Any) -> Any:
        return tokenizer(samples)

    return collate


def _lambda(tokenizer: Tokenizer) -> Any:
    return lambda samples: _pad(samples, tokenizer)


def _in_groups(samples: Any) -> Any:
    groups = defaultdict(list)
    for sample in samples:
        groups[len(sample) % 2].append(sample)
    return {key: pad_sequence(group, batch_first=True) for key, group in sorted(groups.items())}


class Stateful:
    """Keeps what it has seen, and makes each batch of it."""

    def __init__(self) -> None:
        self.table: dict[str, Any] = {}
        self.lengths: list[int] = []

    def __call__(self, samples: Any) -> Any:
        self.lengths.clear()
        self.lengths.extend(map(len, samples))
        self.table["samples"] = samples
        return default_collate(self.lengths), [sample[0] for sample in self.table["samples"]]


WAYS: dict[str, Callable[[], tuple[Any, Any]]] = {
    "a function": lambda: (Texts(), _in_groups),
    "a lambda of the samples": lambda: (Texts(), lambda samples: samples),
    "an object": lambda: (Texts(), Pad()),
    "an object in an object": lambda: (Texts(), Pad(Pad())),
    "an object with a list and a dict": lambda: (Texts(), Stateful()),
    "a method of the dataset": lambda: (data := Texts(), data.collate),
    "a method of a data module": lambda: (Texts(), Module().collate),
    "a method of a data module that has the dataset": lambda: (
        (module := Module()).data,
        module.collate,
    ),
    "a data collator": lambda: (Texts(), DataCollator(Tokenizer())),
    "a partial": lambda: (Texts(), partial(_pad, tokenizer=Tokenizer())),
    "a lambda around a tokenizer": lambda: (Texts(), _lambda(Tokenizer())),
    "a factory": lambda: (Texts(), _factory(Tokenizer())),
    "a module": lambda: (Texts(), Transforms()),
}


def told(loader: Any) -> list[Any]:
    return [repr(batch) for batch in loader]


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
@pytest.mark.filterwarnings("ignore:This DataLoader will create")
@pytest.mark.parametrize("persistent", [False, True])
@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)
def test_the_batches_are_those_of_torch_s_processes(
    way: Any, persistent: bool, spawn: Spawn
) -> None:
    dataset, collate_fn = way()
    options = {
        "batch_size": BATCH,
        "collate_fn": collate_fn,
        "num_workers": WORKERS,
        "persistent_workers": persistent,
    }
    expected = told(DataLoader(dataset, multiprocessing_context="fork", **options))
    with ThreadLoader(dataset, **options) as loader:
        for _ in range(3):
            assert spawn(told, loader).result(PATIENCE) == expected


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_collate_fn_that_counts_counts_in_each_worker() -> None:
    class Counts:
        count = 0

        def __call__(self, samples: Any) -> tuple[int, int]:
            self.count += 1
            return samples[0], self.count

    def counted(kind: Any, **options: Any) -> tuple[Any, int]:
        collate_fn = Counts()
        got = list(kind(range(6), collate_fn=collate_fn, **options))
        return got, collate_fn.count

    for workers in (0, 1):
        theirs = counted(DataLoader, num_workers=workers)
        assert counted(ThreadLoader, num_workers=workers) == theirs
