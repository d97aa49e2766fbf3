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

each_number_of_threads = pytest.mark.parametrize("threads", THREADS)


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


def survivors(size: int, rows: int, bad: Any) -> list[list[int]]:
    planned = [range(start, min(size, start + rows)) for start in range(0, size, rows)]
    left = [[index for index in batch if index not in bad] for batch in planned]
    return [batch for batch in left if batch]


SAMPLES: dict[str, Callable[[int], Any]] = {
    "tensor": lambda n: torch.full((2, 3), float(n)),
    "tensor ()": torch.tensor,
    "bfloat16": lambda n: torch.full((2,), n, dtype=torch.bfloat16),
    "with grad": lambda n: torch.full((2,), float(n), requires_grad=True),
    "nested": lambda n: {"a": (torch.ones(n % 1 + 2), n), "b": [np.float32(n), str(n)]},
    "array": lambda n: np.full(3, n, np.int16),
    "string": str,
    "number": float,
    "ragged": lambda n: torch.zeros(n % 3),
    "mixed": lambda n: n if n % 4 else torch.tensor(n),
}


@each_number_of_threads
@pytest.mark.parametrize("kind", [Faulty, Whole])
@pytest.mark.parametrize("sample", SAMPLES.values(), ids=SAMPLES)
@pytest.mark.parametrize("bad", [{0}, {2, 5, 6}, {4, 5, 6, 7}], ids=str)
def test_short_batches_are_torchs(
    bad: set[int], sample: Any, kind: Any, threads: int, spawn: Spawn
) -> None:
    dataset = kind([sample(number) for number in range(SIZE)], bad)
    good = Faulty(dataset.made, ())
    expected = outcomes(DataLoader(good, batch_sampler=survivors(SIZE, 4, bad)))
    with ThreadLoader(dataset, 4, threads=threads, on_error="skip") as loader:
        for _ in range(2):
            assert spawn(outcomes, loader).result(PATIENCE) == expected


@given(data=st.data())
@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_short_batches_of_generated_samples_are_torchs(data: st.DataObject, spawn: Spawn) -> None:
    made = data.draw(samples((*PLAIN, *ODD, BEYOND)))
    bad = data.draw(st.sets(st.integers(0, max(0, len(made) - 1))))
    rows = data.draw(st.integers(1, 4))
    good = Faulty(made, ())
    expected = outcomes(DataLoader(good, batch_sampler=survivors(len(made), rows, bad)))
    threads = data.draw(st.sampled_from(THREADS))
    dataset = data.draw(st.sampled_from([Faulty, Whole]))(made, bad)
    with ThreadLoader(dataset, rows, threads=threads, on_error="skip") as loader:
        assert spawn(outcomes, loader).result(PATIENCE) == expected


@each_number_of_threads
def test_single_samples_that_fail_are_left_out(threads: int, spawn: Spawn) -> None:
    dataset = Faulty([torch.tensor(number) for number in range(SIZE)], {0, 4, 9})
    expected = outcomes(DataLoader(dataset, None, sampler=[1, 2, 3, 5, 6, 7, 8]))
    with ThreadLoader(dataset, None, threads=threads, on_error="skip") as loader:
        assert spawn(outcomes, loader).result(PATIENCE) == expected


@each_number_of_threads
def test_an_index_that_a_tensor_dataset_does_not_have_is_left_out(
    threads: int, spawn: Spawn
) -> None:
    dataset = Subset(TensorDataset(torch.arange(5)), [4, 9, 0, -6, -1])
    with ThreadLoader(dataset, 2, threads=threads, on_error="skip") as loader:
        told = spawn(lambda: [batch[0].tolist() for batch in loader]).result(PATIENCE)
    assert told == [[4], [0], [4]]
    assert [each.index for each in loader.statistics().skipped] == [1, 3]


@pytest.mark.parametrize("threads", [0, 1])
def test_an_index_that_a_subsets_own_indices_do_not_have_is_left_out(
    threads: int, spawn: Spawn
) -> None:
    class Missing(Dataset[Any]):
        def __getitem__(self, index: int) -> int:
            return {0: 5, 1: 6}[index]

    for indices in ({0: 3, 1: 4}, Missing()):
        dataset = Subset(TensorDataset(torch.arange(7)), indices)  # type: ignore[arg-type]
        loader = ThreadLoader(
            dataset, batch_sampler=[[0, 7], [1]], threads=threads, on_error="skip", seed=1
        )
        with loader:
            told = spawn(outcomes, loader).result(PATIENCE)
        assert told == outcomes(DataLoader(dataset, batch_sampler=[[0], [1]]))


class OnlyWhole(Dataset[Any]):
    """Has torch's ``__getitem__``, which is none."""

    def __len__(self) -> int:
        return 6

    def __getitems__(self, indices: Any) -> Any:
        if 4 in indices:
            raise OSError("disk")
        return [torch.tensor(index) for index in indices]


@each_number_of_threads
def test_the_error_of_whole_batches_is_not_hidden_by_a_missing_getitem(
    threads: int, spawn: Spawn
) -> None:
    with ThreadLoader(OnlyWhole(), 3, threads=threads, on_error="skip") as loader:
        told = spawn(outcomes, loader).result(PATIENCE)
    assert told[1] == (OSError, "disk")


@each_number_of_threads
def test_whole_batches_inside_of_torchs_wrappers(threads: int, spawn: Spawn) -> None:
    whole = Whole([torch.tensor(number) for number in range(6)], {1, 4})
    for dataset in (Subset(whole, range(6)), StackDataset(whole, whole)):
        with ThreadLoader(dataset, 3, threads=threads, on_error="skip") as loader:
            told = spawn(outcomes, loader).result(PATIENCE)
        expected = outcomes(DataLoader(dataset, batch_sampler=[[0, 2], [3, 5]]))
        assert told == expected


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


@pytest.mark.parametrize("threads", [0, 1, 2, 3])
@pytest.mark.parametrize("persistent", [False, True])
@pytest.mark.parametrize("bad", [{0}, {1, 2, 3}, {6, 12}, set(range(0, 16, 2))], ids=str)
def test_each_replica_leaves_out_its_own(
    bad: set[int], persistent: bool, threads: int, spawn: Spawn
) -> None:
    if persistent and not threads:
        pytest.skip("there are no workers")
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


@each_number_of_threads
@pytest.mark.filterwarnings("ignore")
def test_pinned_short_batches(threads: int, spawn: Spawn) -> None:
    dataset = Faulty([torch.full((3,), number) for number in range(SIZE)], {0, 5, 8, 9})
    with ThreadLoader(dataset, 4, threads=threads, on_error="skip", pin_memory=True) as loader:
        told = spawn(lambda: [batch[:, 0].tolist() for batch in loader]).result(PATIENCE)
    assert told == [[1, 2, 3], [4, 6, 7]]


class Augmented(Faulty):
    def __getitem__(self, index: int) -> Any:
        drawn = torch.rand(()).item()
        return super().__getitem__(index), drawn


@each_number_of_threads
def test_torchs_random_numbers_of_the_others_are_the_same(threads: int, spawn: Spawn) -> None:
    def drawn(bad: set[int]) -> dict[int, float]:
        dataset = Augmented(range(SIZE), bad)
        with ThreadLoader(
            dataset, 4, threads=threads, seed=3, on_error="skip", collate_fn=list
        ) as loader:
            return dict(pair for batch in spawn(list, loader).result(PATIENCE) for pair in batch)

    bad = {0, 5, 6}
    all_of_them = drawn(set())
    assert drawn(bad) == {i: value for i, value in all_of_them.items() if i not in bad}


@each_number_of_threads
def test_the_users_random_state_is_left_as_without_failures(threads: int, spawn: Spawn) -> None:
    def state(bad: set[int]) -> Any:
        torch.manual_seed(5)
        with ThreadLoader(
            Augmented(range(SIZE), bad), 4, shuffle=True, threads=threads, on_error="skip"
        ) as loader:
            list(loader)
        return torch.rand(()).item()

    assert spawn(state, {0, 5}).result(PATIENCE) == spawn(state, set()).result(PATIENCE)


@each_number_of_threads
def test_with_torchs_extended_collate_the_odd_row_is_named_rightly(
    threads: int, spawn: Spawn, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(collate.default_collate_fn_map, frozenset, lambda batch, **_: batch)
    dataset = Faulty([torch.zeros(2 if number == 7 else 3) for number in range(8)], {4})

    def error(loader: Any) -> Any:
        iterator = iter(loader)
        next(iterator)
        with pytest.raises(RuntimeError) as caught:
            next(iterator)
        return caught.value

    with ThreadLoader(dataset, 4, threads=threads, on_error="skip") as loader:
        raised = spawn(error, loader).result(PATIENCE)
    assert raised.__notes__[-1].endswith("batch 1, index 7")
