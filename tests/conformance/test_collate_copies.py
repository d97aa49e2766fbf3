"""Collate functions that keep something on themselves: as with torch's processes.

`tests/fetch/test_function_copy.py` has all the ways in which people write them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch.utils.data import Dataset

if TYPE_CHECKING:
    from collections.abc import Callable

    from conformance.loading import MakeLoader

SIZE = 64


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


class Module:
    """As Lightning's data modules: not to be called, and attached to a trainer."""

    def __init__(self) -> None:
        self.data = Texts()
        self.trainer = {"module": self}

    def collate(self, samples: Any) -> Any:
        return self.data.collate(samples)


class Pads(torch.nn.Module):
    collate = Texts.collate

    def forward(self, samples: Any) -> Any:
        return self.collate(samples)


class Transforms(torch.nn.Module):
    """As Lightly's: a module that is called with a batch."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = torch.nn.Sequential(Pads())

    def forward(self, samples: Any) -> Any:
        return self.inner(samples)


WAYS: dict[str, Callable[[], tuple[Any, Any]]] = {
    "a method of the dataset": lambda: (data := Texts(), data.collate),
    "a method of a data module": lambda: (Texts(), Module().collate),
    "one that has the dataset": lambda: ((module := Module()).data, module.collate),
    "a module": lambda: (Texts(), Transforms()),
}


@pytest.mark.parametrize("persistent", [False, True])
@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)
def test_the_batches_are_those_of_torch_s_processes(
    way: Any, persistent: bool, alike_workers: Callable[..., Any]
) -> None:
    def run(make: MakeLoader) -> list[Any]:
        dataset, collate_fn = way()
        loader = make(dataset, 4, collate_fn=collate_fn, persistent_workers=persistent)
        return [[repr(batch) for batch in loader] for _ in range(3 if persistent else 1)]

    alike_workers(run, 4)


def test_a_collate_fn_that_counts_counts_in_each_worker(alike_workers: Callable[..., Any]) -> None:
    class Counts:
        count = 0

        def __call__(self, samples: Any) -> tuple[int, int]:
            self.count += 1
            return samples[0], self.count

    def run(make: MakeLoader) -> tuple[Any, int]:
        collate_fn = Counts()
        return list(make(range(6), collate_fn=collate_fn)), collate_fn.count

    alike_workers(run, 0, 1)
