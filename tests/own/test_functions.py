"""A collate function, or a transform, is each worker's own wherever it is called."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from threading import Barrier
from typing import Any

import pytest
from support.patience import PATIENCE, Spawn
from support.streams import Rows

from threadloader import ThreadLoader, get_worker_info
from threadloader._torch import IterableDataset

THREADS = 4


class Collator:
    """Wrong if two threads use it at once."""

    together = Barrier(THREADS)  # of the class: one for all

    def __call__(self, samples: Any) -> Any:
        self.samples = samples
        self.together.wait(PATIENCE)
        return self.samples


def load(dataset: Any, collate_fn: Any, spawn: Spawn, **options: Any) -> list[Any]:
    """Load as many batches as there are threads, all of which are collated at once."""
    arguments = {"batch_size": 1, "num_workers": THREADS, "prefetch": THREADS} | options
    with ThreadLoader(dataset, collate_fn=collate_fn, **arguments) as loader:
        return spawn(list, loader).result(2 * PATIENCE)


class Replica(IterableDataset):  # type: ignore[type-arg]
    def __iter__(self) -> Iterator[int]:
        yield get_worker_info().id


WHERE: dict[str, tuple[Callable[[Any], dict[str, Any]], int]] = {  # and how many call it
    "deep": (lambda it: {"dataset": range(THREADS), "dataset_copy": "deep", "collate_fn": it}, 4),
    "replicas": (lambda it: {"dataset": Replica(), "collate_fn": it}, 4),
    "behind a transform": (lambda it: {"dataset": Rows(3), "transform": int, "collate_fn": it}, 3),
    "a transform": (lambda it: {"dataset": iter(range(3)), "transform": it, "collate_fn": list}, 3),
}


@pytest.mark.parametrize("where", WHERE)
@pytest.mark.usefixtures("first_sample_waits")
def test_scratch_state_is_a_worker_s_own_wherever_the_function_is(
    where: str, spawn: Spawn, monkeypatch: pytest.MonkeyPatch
) -> None:
    arguments, callers = WHERE[where]
    monkeypatch.setattr(Collator, "together", Barrier(callers))  # one of the others reads
    assert load(spawn=spawn, **arguments(Collator())) == [[row] for row in range(callers)]


def test_what_dataset_and_collate_fn_have_in_common_is_one_in_a_worker(spawn: Spawn) -> None:
    class Has:
        def __init__(self, common: Any) -> None:
            self.common = common

        def __len__(self) -> int:
            return 2

        def __getitem__(self, index: int) -> int:
            return id(self.common)

        def __call__(self, samples: Any) -> Any:
            return samples == [id(self.common)]

    common = Collator()
    assert load(Has(common), Has(common), spawn, num_workers=2) == [True, True]


def test_a_module_whose_method_collates_is_copied_and_a_model_in_it_is_shared(
    spawn: Spawn,
) -> None:
    nn = pytest.importorskip("torch.nn")

    class Light(nn.Module):  # type: ignore[misc,name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.model = nn.Linear(2, 2)
            self.augment = nn.Sequential(nn.Identity())
            self.trainer = {"modules": [self]}  # what it is attached to leads back to it

        def collate(self, _: Any) -> Any:
            return self

    module = Light()
    with ThreadLoader(range(4), threads=2, collate_fn=module.collate) as loader:
        for twin in spawn(list, loader).result(PATIENCE):
            assert twin is not module
            assert twin.model is module.model
            assert twin.augment[0] is not module.augment[0]
            assert twin.trainer["modules"][0] is twin
