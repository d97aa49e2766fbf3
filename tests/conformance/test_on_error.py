"""A batch without the samples that fail is what torch's loader makes of those that do not."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.faulty import Faulty, Whole, survivors
from support.patience import PATIENCE, Spawn
from support.pictures import outcomes
from torch.utils.data import (
    DataLoader,
    Dataset,
    StackDataset,
    Subset,
    TensorDataset,
)

from conformance.loading import THREADS
from conformance.samples import BEYOND, ODD, PLAIN, samples
from threadloader import ThreadLoader


class OnlyWhole(Dataset[Any]):
    """Has torch's ``__getitem__``, which is none."""

    def __len__(self) -> int:
        return 6

    def __getitems__(self, indices: Any) -> Any:
        if 4 in indices:
            raise OSError("disk")
        return [TENSORS[index] for index in indices]


def faulty(kind: type[Faulty], made: Any, bad: Any) -> Faulty:
    """Return samples, some of which raise."""
    dataset = kind(bad, len(made))
    dataset.sample = made.__getitem__  # type: ignore[method-assign]
    return dataset


def skipped(dataset: Any, *given: Any, threads: int, spawn: Spawn, **named: Any) -> list[Any]:
    """Return what an epoch gives that leaves out what fails."""
    with ThreadLoader(dataset, *given, threads=threads, on_error="skip", **named) as loader:
        told: list[Any] = spawn(outcomes, loader).result(PATIENCE)
    return told


@given(data=st.data())
@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_short_batches_of_generated_samples_are_torchs(data: st.DataObject, spawn: Spawn) -> None:
    made = data.draw(samples((*PLAIN, *ODD, BEYOND)))
    bad = data.draw(st.sets(st.integers(0, max(0, len(made) - 1))))
    rows = data.draw(st.integers(1, 4))
    sampler = survivors(bad, size=len(made), rows=rows)
    expected = outcomes(DataLoader(faulty(Faulty, made, ()), batch_sampler=sampler))
    threads = data.draw(st.sampled_from(THREADS))
    dataset = faulty(data.draw(st.sampled_from([Faulty, Whole])), made, bad)
    assert skipped(dataset, rows, threads=threads, spawn=spawn) == expected


TENSORS = [torch.tensor(number) for number in range(6)]
MISSING = Subset(TensorDataset(torch.arange(7)), {0: 3, 1: 4})  # type: ignore[arg-type]
LEFT: dict[
    str, tuple[Any, dict[str, Any], dict[str, Any]]
] = {  # dataset, arguments, those of torch
    "what a tensor dataset does not have": (
        Subset(TensorDataset(torch.arange(5)), [4, 9, 0, -6, -1]),
        {"batch_size": 2},
        {"batch_sampler": [[0], [2], [4]]},
    ),
    "what a subset's indices do not have": (
        MISSING,
        {"batch_sampler": [[0, 7], [1]]},
        {"batch_sampler": [[0], [1]]},
    ),
    "whole batches in a subset": (
        Subset(faulty(Whole, TENSORS, {1, 4}), range(6)),
        {"batch_size": 3},
        {"batch_sampler": [[0, 2], [3, 5]]},
    ),
    "whole batches in a stack": (
        StackDataset(whole := faulty(Whole, TENSORS, {1, 4}), whole),
        {"batch_size": 3},
        {"batch_sampler": [[0, 2], [3, 5]]},
    ),
    "whole batches without single samples": (
        OnlyWhole(),
        {"batch_size": 3},
        {"batch_size": 3},
    ),
}


@pytest.mark.parametrize("case", LEFT)
def test_what_fails_is_left_out(case: str, spawn: Spawn) -> None:
    dataset, arguments, torchs = LEFT[case]
    expected = outcomes(DataLoader(dataset, **torchs))
    for threads in THREADS:
        assert skipped(dataset, threads=threads, spawn=spawn, **arguments) == expected
