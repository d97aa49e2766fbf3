"""Values of a wrong kind: refused at the step, and in the words, of torch; or taken as it does."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch
from support.patience import PATIENCE
from torch.utils.data import DataLoader, IterableDataset

from threadloader import ThreadLoader

if TYPE_CHECKING:
    from collections.abc import Iterator

    from support.patience import Spawn

pytestmark = pytest.mark.filterwarnings("ignore:.*use of fork:DeprecationWarning")

ROWS = list(range(5))


class Stream(IterableDataset[int]):
    def __iter__(self) -> Iterator[int]:
        return iter(ROWS)


STREAM = Stream()
REFUSED: list[tuple[Any, dict[str, Any]]] = [
    (ROWS, {"drop_last": "yes"}),
    (ROWS, {"drop_last": None}),
    (ROWS, {"num_workers": "2"}),
    (ROWS, {"num_workers": -1}),
    (ROWS, {"num_workers": 1, "prefetch_factor": 1.5}),
    (ROWS, {"num_workers": 1, "prefetch_factor": "a"}),
    (STREAM, {"drop_last": "yes", "batch_size": 2}),
    (STREAM, {"shuffle": "yes"}),
    (STREAM, {"shuffle": True}),
    (STREAM, {"sampler": 3}),
    (STREAM, {"batch_sampler": 3}),
    (STREAM, {"sampler": [0]}),
]
TAKEN: list[tuple[Any, dict[str, Any]]] = [
    (ROWS, {"num_workers": True}),
    (ROWS, {"num_workers": False}),
    (ROWS, {"num_workers": True, "persistent_workers": True}),
    (ROWS, {"num_workers": 1, "persistent_workers": "a"}),
    (ROWS, {"worker_init_fn": 3}),
    (STREAM, {"worker_init_fn": 3}),
    (STREAM, {"num_workers": True}),
]


def names(case: Any) -> str:
    dataset, arguments = case
    return f"{type(dataset).__name__}, {arguments}"


def told(kind: Any, dataset: Any, arguments: dict[str, Any]) -> tuple[Any, ...]:
    """Return the batches of a loader, or at which step it is refused, and how."""
    step = "init"
    try:
        torch.manual_seed(3)
        loader = kind(dataset, **({"num_workers": 0} | arguments))
        step = "iter"
        iterator = iter(loader)
        return "batches", [batch.tolist() for batch in iterator]
    except Exception as error:  # noqa: BLE001  # both loaders have to raise the same
        return step, type(error), str(error)


@pytest.mark.parametrize("case", REFUSED, ids=names)
def test_what_torch_refuses_is_refused_in_its_words(case: Any, spawn: Spawn) -> None:
    expected = told(DataLoader, *case)
    assert expected[0] != "batches"
    assert spawn(told, ThreadLoader, *case).result(PATIENCE) == expected


@pytest.mark.parametrize("case", TAKEN, ids=names)
def test_what_torch_takes_is_taken(case: Any, spawn: Spawn) -> None:
    dataset, arguments = case
    forked = {"multiprocessing_context": "fork"} if arguments.get("num_workers") else {}
    expected = told(DataLoader, dataset, arguments | forked)
    assert expected[0] == "batches"
    assert spawn(told, ThreadLoader, dataset, arguments).result(PATIENCE) == expected


def test_the_words_for_a_prefetch_factor_come_at_iter_and_again_when_it_is_assigned() -> None:
    loader: Any = ThreadLoader(ROWS, num_workers=1)
    loader.prefetch_factor = 1.5
    for _ in range(2):
        with pytest.raises(TypeError):
            iter(loader)
    loader.prefetch_factor = 1
    assert [batch.item() for batch in loader] == ROWS
