"""What user code in a worker is told: `get_worker_info()`, its seed, and torch's own settings."""

from __future__ import annotations

from typing import Any

import pytest
from support.child import printed_by
from support.patience import PATIENCE, Spawn

from threadloader import ThreadLoader

torch = pytest.importorskip("torch")
data = torch.utils.data
get_worker_info = data.get_worker_info

pytestmark = pytest.mark.filterwarnings("ignore:.*use of fork:DeprecationWarning")

SIZE = 8  # samples

each_number_of_workers = pytest.mark.parametrize("workers", [1, 2])


class Infos:
    """Each sample is what the worker is told of itself, and its seed by torch."""

    def __len__(self) -> int:
        return SIZE

    def __getitem__(self, index: int) -> Any:
        return get_worker_info(), torch.initial_seed(), self


def infos(loader: Any, spawn: Spawn) -> list[Any]:
    return [sample for batch in spawn(list, loader).result(PATIENCE) for sample in batch]


@each_number_of_workers
def test_a_dataset_is_told_all_of_its_worker(workers: int, spawn: Spawn) -> None:
    loader = ThreadLoader(Infos(), 2, num_workers=workers, collate_fn=list)
    told = infos(loader, spawn)
    assert len(told) == SIZE
    assert len({info.seed - info.id for info, _, _ in told}) == 1
    for info, seed, dataset in told:
        assert info.id in range(workers)
        assert info.num_workers == workers
        assert info.worker_method == "thread"
        assert info.seed != seed  # that is the sample's
        assert info.dataset is dataset
        assert info.dataset is not loader.dataset
        assert isinstance(info.rng.torch_generator, torch.Generator)
        assert 0 <= info.rng.random_generator.random() < 1
        assert 0 <= info.rng.numpy_generator.random() < 1


def test_all_user_code_that_imported_it_before_threadloader_knows_its_worker() -> None:
    script = """
from torch.utils.data import get_worker_info as ask
from torch.utils.data._utils.worker import get_worker_info as ask_too
from threadloader import ThreadLoader
seen = set()
def note(place, given=None):
    info = ask()
    assert info is ask_too()
    seen.add((place, info and (info.num_workers, info.id in range(info.num_workers))))
    return given
class Rows:
    def __iter__(self):
        return (note("dataset", row) for row in range(6))
for _ in ThreadLoader(
    Rows(),
    2,
    num_workers=3,
    transform=lambda row: note("transform", row),
    collate_fn=lambda rows: note("collate_fn", rows),
    worker_init_fn=lambda _: note("worker_init_fn"),
):
    note("consumer")
note("consumer")
print(*sorted(seen), sep="\\n")
"""
    assert printed_by(script).splitlines() == [
        "('collate_fn', (3, True))",
        "('consumer', None)",
        "('dataset', (1, True))",
        "('transform', (3, True))",
        "('worker_init_fn', (1, True))",
        "('worker_init_fn', (3, True))",
    ]
