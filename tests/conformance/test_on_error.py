"""A batch without the samples that fail is what torch's loader makes of those that do not."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.patience import PATIENCE
from support.pictures import outcomes
from support.streams import Hiccups
from torch.utils.data import (
    DataLoader,
    Dataset,
    IterableDataset,
    StackDataset,
    Subset,
    TensorDataset,
    get_worker_info,
)
from torch.utils.data._utils import collate

from conformance.loading import THREADS
from conformance.samples import BEYOND, ODD, PLAIN, samples
from threadloader import ThreadLoader

if TYPE_CHECKING:
    from collections.abc import Callable

    from support.patience import Spawn

SIZE = 10


class Faulty(Dataset[Any]):
    """Samples, some of which raise."""

    def __init__(self, made: Any, bad: Any) -> None:
        self.made = made
        self.bad = frozenset(bad)

    def __len__(self) -> int:
        return len(self.made)

    def __getitem__(self, index: int) -> Any:
        if index in self.bad:
            raise LookupError(index)
        return self.made[index]


class Whole(Faulty):
    def __getitems__(self, indices: Any) -> Any:
        return [self[index] for index in indices]


class OnlyWhole(Faulty):
    """Has torch's ``__getitem__``, which is none."""

    __getitem__ = Dataset.__getitem__

    def __getitems__(self, indices: Any) -> Any:
        if self.bad & set(indices):
            raise OSError("disk")
        return [self.made[index] for index in indices]


def survivors(size: int, rows: int, bad: Any) -> list[list[int]]:
    planned = [range(start, min(size, start + rows)) for start in range(0, size, rows)]
    left = [[index for index in batch if index not in bad] for batch in planned]
    return [batch for batch in left if batch]


def skipped(dataset: Any, *given: Any, threads: int, spawn: Spawn, **named: Any) -> list[Any]:
    """Return what an epoch gives that leaves out what fails."""
    with ThreadLoader(dataset, *given, threads=threads, on_error="skip", **named) as loader:
        told: list[Any] = spawn(outcomes, loader).result(PATIENCE)
    return told


SAMPLES: dict[str, Callable[[int], Any]] = {
    "tensor": lambda n: torch.full((2, 3), float(n)),
    "bfloat16": lambda n: torch.full((2,), n, dtype=torch.bfloat16),
    "with grad": lambda n: torch.full((2,), float(n), requires_grad=True),
    "nested": lambda n: {"a": (torch.ones(n % 1 + 2), n), "b": [np.float32(n), str(n)]},
    "ragged": lambda n: torch.zeros(n % 3),
    "mixed": lambda n: n if n % 4 else torch.tensor(n),
}


@pytest.mark.parametrize("sample", SAMPLES.values(), ids=SAMPLES)
@pytest.mark.parametrize("bad", [{0}, {2, 5, 6}, {4, 5, 6, 7}], ids=str)
def test_short_batches_are_torchs(bad: set[int], sample: Any, spawn: Spawn) -> None:
    made = [sample(number) for number in range(SIZE)]
    expected = outcomes(DataLoader(Faulty(made, ()), batch_sampler=survivors(SIZE, 4, bad)))
    for threads in THREADS:
        for kind in (Faulty, Whole):
            assert skipped(kind(made, bad), 4, threads=threads, spawn=spawn) == expected


@given(data=st.data())
@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_short_batches_of_generated_samples_are_torchs(data: st.DataObject, spawn: Spawn) -> None:
    made = data.draw(samples((*PLAIN, *ODD, BEYOND)))
    bad = data.draw(st.sets(st.integers(0, max(0, len(made) - 1))))
    rows = data.draw(st.integers(1, 4))
    sampler = survivors(len(made), rows, bad)
    expected = outcomes(DataLoader(Faulty(made, ()), batch_sampler=sampler))
    threads = data.draw(st.sampled_from(THREADS))
    dataset = data.draw(st.sampled_from([Faulty, Whole]))(made, bad)
    assert skipped(dataset, rows, threads=threads, spawn=spawn) == expected


TENSORS = [torch.tensor(number) for number in range(SIZE)]
MISSING = Subset(TensorDataset(torch.arange(7)), {0: 3, 1: 4})  # type: ignore[arg-type]
LEFT: dict[
    str, tuple[Any, dict[str, Any], dict[str, Any]]
] = {  # dataset, arguments, those of torch
    "single samples": (
        Faulty(TENSORS, {0, 4, 9}),
        {"batch_size": None},
        {"batch_size": None, "sampler": [1, 2, 3, 5, 6, 7, 8]},
    ),
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
        Subset(Whole(TENSORS, {1, 4}), range(6)),
        {"batch_size": 3},
        {"batch_sampler": [[0, 2], [3, 5]]},
    ),
    "whole batches in a stack": (
        StackDataset(whole := Whole(TENSORS[:6], {1, 4}), whole),
        {"batch_size": 3},
        {"batch_sampler": [[0, 2], [3, 5]]},
    ),
    "pinned": (
        Faulty(TENSORS, {0, 5, 8, 9}),
        {"batch_size": 4, "pin_memory": True},
        {"batch_sampler": [[1, 2, 3], [4, 6, 7]]},
    ),
    "whole batches without single samples": (
        OnlyWhole(TENSORS[:6], {4}),
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


class Shards(IterableDataset[Any]):
    """Each worker reads its share of the rows; some raise."""

    def __init__(self, bad: set[int], size: int = 20) -> None:
        self.bad = bad
        self.size = size

    def __iter__(self) -> Any:
        info = get_worker_info()
        number, count = (0, 1) if info is None else (info.id, info.num_workers)
        return Share(list(range(number, self.size, count)), self.bad)


class Share(Hiccups):
    def __init__(self, rows: list[int], bad: set[int]) -> None:
        super().__init__(0, bad)
        self.rows = iter(rows)


@pytest.mark.parametrize(("threads", "persistent"), [(0, False), (1, False), (2, True), (3, False)])
@pytest.mark.parametrize("bad", [{0}, {1, 2, 3}, {6, 12}, set(range(0, 16, 2))], ids=str)
def test_each_replica_leaves_out_its_own(
    bad: set[int], threads: int, persistent: bool, spawn: Spawn
) -> None:
    good = Shards(set())
    expected = []
    for number in range(max(1, threads)):
        rows = [row for row in range(number, good.size, max(1, threads)) if row not in bad]
        expected.append([rows[start : start + 3] for start in range(0, len(rows), 3)])
    turns = [batch for turn in range(10) for rows in expected for batch in rows[turn : turn + 1]]
    loader = ThreadLoader(
        Shards(bad), 3, num_workers=threads, on_error="skip", persistent_workers=persistent
    )
    with loader:
        for epoch in (1, 2):
            told = spawn(lambda: [batch.tolist() for batch in loader]).result(PATIENCE)
            assert told == turns
            assert loader.statistics().skipped_count == epoch * len(bad)


class Augmented(Faulty):
    def __getitem__(self, index: int) -> Any:
        drawn = torch.rand(()).item()
        return super().__getitem__(index), drawn


@pytest.mark.parametrize("threads", THREADS)
def test_torchs_random_numbers_are_the_same_for_the_others_and_the_user(
    threads: int, spawn: Spawn
) -> None:
    def drawn(bad: set[int]) -> tuple[dict[int, float], float]:
        torch.manual_seed(5)
        dataset = Augmented(range(SIZE), bad)
        with ThreadLoader(
            dataset, 4, shuffle=True, threads=threads, on_error="skip", collate_fn=list
        ) as loader:
            return dict(pair for batch in loader for pair in batch), torch.rand(()).item()

    bad = {0, 5, 6}
    everything, after = spawn(drawn, set()).result(PATIENCE)
    left = {index: value for index, value in everything.items() if index not in bad}
    assert spawn(drawn, bad).result(PATIENCE) == (left, after)


@pytest.mark.parametrize("threads", THREADS)
def test_with_torchs_extended_collate_the_odd_row_is_named_rightly(
    threads: int, spawn: Spawn, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(collate.default_collate_fn_map, frozenset, lambda batch, **_: batch)
    dataset = Faulty([torch.zeros(2 if number == 7 else 3) for number in range(8)], {4})
    with ThreadLoader(dataset, 4, threads=threads, on_error="skip") as loader:
        iterator = iter(loader)
        next(iterator)
        with pytest.raises(RuntimeError) as caught:
            spawn(next, iterator).result(PATIENCE)
    assert caught.value.__notes__[-1].endswith("batch 1, index 7")
