"""What user code in a worker is told: `get_worker_info()`, its seed, and torch's own settings."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import pytest
from support.child import run_child
from support.patience import PATIENCE

from threadloader import ThreadLoader

if TYPE_CHECKING:
    from support.patience import Spawn

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


def run(script: str) -> str:
    """Run a script in an interpreter of its own; return what it prints."""
    code, told, errors = run_child(script)
    assert code == 0, errors
    return told


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
    assert run(script).splitlines() == [
        "('collate_fn', (3, True))",
        "('consumer', None)",
        "('dataset', (1, True))",
        "('transform', (3, True))",
        "('worker_init_fn', (1, True))",
        "('worker_init_fn', (3, True))",
    ]


def _numbers(samples: list[Any]) -> Any:
    info, seed, _ = samples[0]
    return info.id, info.num_workers, info.seed, seed, getattr(info, "worker_method", None)


def _processes(workers: int) -> Any:
    return data.DataLoader(
        Infos(), num_workers=workers, collate_fn=_numbers, multiprocessing_context="fork"
    )


class Nested:
    """A sample is what processes that its worker starts are told."""

    def __len__(self) -> int:
        return 1

    def __getitem__(self, index: int) -> Any:
        before = get_worker_info()
        told = list(_processes(1))
        return before, told, get_worker_info()


def test_a_process_worker_inside_a_thread_is_told_of_itself(spawn: Spawn) -> None:
    loader = ThreadLoader(Nested(), num_workers=2, collate_fn=list)
    (before, told, after) = infos(loader, spawn)[0]
    assert before is after
    for number, workers, seed, initial, method in told:
        assert (number, workers) == (0, 1)
        assert seed == initial != before.seed
        assert method != "thread"


@pytest.mark.skipif(sys.platform == "win32", reason="no limit of file handles")
def test_batches_that_are_kept_keep_no_file_open() -> None:
    script = """
import resource, torch
from torch.utils.data import default_collate
from threadloader import ClosedError, ThreadLoader
resource.setrlimit(resource.RLIMIT_NOFILE, (100, 100))
for collate_fn in (None, lambda samples: default_collate(samples)):
    dataset = list(torch.arange(200).reshape(200, 1))
    kept = list(ThreadLoader(dataset, 2, num_workers=2, collate_fn=collate_fn))
    assert torch.cat(kept).flatten().tolist() == list(range(200))
print(len(kept))
"""
    assert run(script) == "100"


def test_a_backward_pass_beside_busy_workers_uses_as_many_threads_as_before() -> None:
    script = f"""
import threading, torch
from threadloader import ThreadLoader
torch.set_num_threads(3)
def note(name):
    seen[name] = torch.get_num_threads()
def row(index):
    if index == 1:
        busy.set()
        assert gate.wait({PATIENCE})
    return torch.tensor(float(torch.get_num_threads()))
class Rows:
    __len__ = lambda _: 3
    __getitem__ = lambda _, index: row(index)
for dataset, options in (
    (Rows(), {{"num_workers": 2}}), (iter(range(3)), {{"num_workers": 3, "transform": row}})
):
    busy, gate = threading.Event(), threading.Event()
    seen = {{}}
    batches = iter(ThreadLoader(dataset, **options))
    told = [next(batches)]
    assert busy.wait({PATIENCE})
    weight = torch.ones(1, requires_grad=True)
    weight.register_hook(lambda _: note("backward"))
    (weight * told[0]).sum().backward()
    note("consumer")
    later = threading.Thread(target=note, args=("later",))
    later.start()
    later.join()
    gate.set()
    told += batches
    print(torch.cat(told).tolist(), sorted(seen.items()))
"""
    told = "[1.0, 1.0, 1.0] [('backward', 3), ('consumer', 3), ('later', 3)]"
    assert run(script).splitlines() == [told] * 2
