"""torch's loaders, loaded by threads: the same batches, whoever made them and however."""

from __future__ import annotations

import copy
import inspect
import pickle
import random
import threading
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

pytest.importorskip("torch")

import torch
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    Dataset,
    IterableDataset,
    RandomSampler,
    WeightedRandomSampler,
    dataloader,
    get_worker_info,
)

from threadloader import ThreadLoader
from threadloader._replacement import methods
from threadloader._replacement.digest import digest
from threadloader._replacement.report import Report, StepsDone

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

Exchange = "Callable[..., Report]"
pytestmark = pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork:DeprecationWarning")


class Numbers(Dataset):
    def __init__(self, size: int = 22) -> None:
        self.size = size
        self.threads: list[str] = []

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, index: int) -> Any:
        self.threads.append(threading.current_thread().name)
        return torch.full((2,), float(index)), index

    @property
    def by_threads(self) -> bool:
        return bool(self.threads) and all("worker" in name for name in self.threads)


class Shared(IterableDataset):
    def __iter__(self) -> Iterator[Any]:
        info = get_worker_info()
        first, step = (0, 1) if info is None else (info.id, info.num_workers)
        for number in range(first, 23, step):
            yield torch.full((2,), float(number)), random.random()


class Doubling:
    """Begins in `__iter__`, not at the first index: torch calls that twice where it has workers."""

    def __init__(self) -> None:
        self.begun = 0

    def __iter__(self) -> Iterator[Any]:
        self.begun += 1
        drawn = int(torch.randint(9, ()))
        return iter([[self.begun, drawn, number] for number in range(5)])

    def __len__(self) -> int:
        return 5


class Repeat:
    def __init__(self, sampler: Any) -> None:
        self.sampler = sampler

    def __iter__(self) -> Any:
        while True:
            yield from iter(self.sampler)


class Infinite(DataLoader):
    """Source: InfiniteDataLoader in ultralytics/data/build.py."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        object.__setattr__(self, "batch_sampler", Repeat(self.batch_sampler))
        self.iterator = super().__iter__()

    def __len__(self) -> int:
        return len(self.batch_sampler.sampler)

    def __iter__(self) -> Any:
        for _ in range(len(self)):
            yield next(self.iterator)

    def reset(self) -> None:
        self.iterator = self._get_iterator()


@pytest.fixture
def exchange(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Report]:
    """Exchange the methods of torch's class, until the test ends."""

    def call(*, steps: int | None = None, replace: bool = True, **options: Any) -> Report:
        for owner, name in (
            (DataLoader, "__init__"),
            (DataLoader, "__iter__"),
            (DataLoader, "_get_iterator"),
            (dataloader._BaseDataLoaderIter, "__next__"),  # noqa: SLF001
        ):
            monkeypatch.setattr(owner, name, getattr(owner, name))
        report = Report(steps)
        options = {"threads": None, **options}
        methods.exchange(dataloader, report, replace=replace, **options)
        return report

    return call


def digests(loader: Any, passes: int = 2) -> list[list[str]]:
    return [[digest(batch) for batch in loader] for _ in range(passes)]


def only(report: Report) -> Any:
    (row,) = report.rows
    return row


MAKERS = {
    "order": lambda: DataLoader(Numbers(), 4, num_workers=2),
    "shuffle": lambda: DataLoader(Numbers(), 4, shuffle=True, num_workers=2),
    "no workers": lambda: DataLoader(Numbers(), 4, shuffle=True),
    "no batches": lambda: DataLoader(Numbers(), batch_size=None, shuffle=True, num_workers=2),
    "no batches, no workers": lambda: DataLoader(Numbers(), batch_size=None),
    "dropped": lambda: DataLoader(Numbers(), 4, drop_last=True),
    "generator": lambda: DataLoader(
        Numbers(), 4, shuffle=True, generator=torch.Generator().manual_seed(5)
    ),
    "persistent": lambda: DataLoader(
        Numbers(), 4, shuffle=True, num_workers=2, persistent_workers=True
    ),
    "weights": lambda: DataLoader(
        Numbers(), 4, sampler=WeightedRandomSampler([1.0] * 22, 10), num_workers=1
    ),
    "batch sampler": lambda: DataLoader(
        Numbers(), batch_sampler=BatchSampler(RandomSampler(range(22)), 5, drop_last=False)
    ),
    "own batch sampler": lambda: DataLoader(Numbers(), batch_sampler=Doubling(), num_workers=2),
    "own, persistent": lambda: DataLoader(
        Numbers(), batch_sampler=Doubling(), num_workers=2, persistent_workers=True
    ),
    "own sampler": lambda: DataLoader(Numbers(), batch_size=None, sampler=[3, 1], num_workers=2),
    "iterable": lambda: DataLoader(Shared(), 4, num_workers=2),
    "one batch": lambda: DataLoader(Numbers(3), 4),
    "empty": lambda: DataLoader(Numbers(0), 4),
    "list": lambda: DataLoader([3, 4, 5], 2),
}


@pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS.keys())
def test_threads_give_the_batches_of_torch_and_leave_the_same_random_state(
    make: Callable[[], Any], exchange: Callable[..., Report]
) -> None:
    def run() -> Any:
        torch.manual_seed(1)
        random.seed(2)
        return digests(make(), passes=3), torch.rand(3).tolist(), random.random()

    expected = run()
    report = exchange()
    assert run() == expected
    assert only(report).reason is None
    assert only(report).batches == sum(map(len, expected[0]))
    assert only(report).passes == 3
    assert expected[0][0] == [] or "thread" in only(report).loaded_by


def test_a_loader_made_before_is_loaded_by_threads(exchange: Callable[..., Report]) -> None:
    dataset = Numbers()
    loader = DataLoader(dataset, 4, num_workers=2)
    exchange()
    assert len(list(loader)) == 6
    assert dataset.by_threads


def test_without_workers_the_first_batch_is_made_in_the_programs_thread_and_no_other(
    exchange: Callable[..., Report],
) -> None:
    exchange(threads=2)
    dataset = Numbers()
    loader = DataLoader(dataset, 4)
    iterator = iter(loader)
    next(iterator)
    assert len(iterator) == 6
    assert len(list(iterator)) == 5
    here = threading.current_thread().name
    assert [name == here for name in sorted(dataset.threads, key=here.__ne__)].count(True) == 4
    dataset.threads.clear()
    list(loader)
    assert dataset.by_threads


def test_without_workers_the_rest_is_loaded_as_a_thread_loader_does_by_default(
    exchange: Callable[..., Report],
) -> None:
    expected = digests(DataLoader(Numbers(), 4))
    report = exchange()
    dataset = Numbers()
    assert digests(DataLoader(dataset, 4)) == expected
    assert only(report).loaded_by == "threads (default)"
    assert len(dataset.threads) == 2 * dataset.size  # by whichever thread, each once


def test_a_loader_with_workers_gets_as_many_threads(exchange: Callable[..., Report]) -> None:
    report = exchange()
    dataset = Numbers()
    list(DataLoader(dataset, 4, num_workers=2))
    assert only(report).loaded_by == "2 threads"
    assert dataset.by_threads


def test_a_subclass_with_an_iter_of_its_own_gets_threads_from_its_parent(
    exchange: Callable[..., Report],
) -> None:
    class Scaled(DataLoader):
        def __iter__(self) -> Any:
            for values, index in super().__iter__():
                yield values * 2, index

    expected = digests(Scaled(Numbers(), 4, num_workers=2))
    exchange()
    dataset = Numbers()
    assert digests(Scaled(dataset, 4, num_workers=2)) == expected
    assert dataset.by_threads


def test_a_loader_that_never_ends_gets_threads(exchange: Callable[..., Report]) -> None:
    def run(dataset: Any) -> Any:
        torch.manual_seed(1)
        loader = Infinite(dataset, 4, shuffle=True, num_workers=2)
        seen = digests(loader)
        loader.reset()
        return seen + digests(loader)

    expected = run(Numbers())
    exchange()
    dataset = Numbers()
    assert run(dataset) == expected
    assert dataset.by_threads


def test_the_class_stays_what_it_is(exchange: Callable[..., Report]) -> None:
    signature = inspect.signature(DataLoader)
    exchange()
    loader = DataLoader(Numbers(), 4, num_workers=2)
    assert inspect.signature(DataLoader) == signature
    assert type(loader) is DataLoader
    assert type(iter(DataLoader[int](Numbers()))) is not None  # type: ignore[arg-type]
    list(loader)
    for twin in (copy.copy(loader), copy.deepcopy(loader), pickle.loads(pickle.dumps(loader))):
        assert type(twin) is DataLoader
        assert digests(twin) == digests(loader)


def test_a_thread_loader_of_the_programs_own_is_left_as_it_is(
    exchange: Callable[..., Report],
) -> None:
    report = exchange()
    assert len(list(ThreadLoader(Numbers(), 4, threads=1))) == 6
    assert report.rows == []


def test_attributes_that_change_between_two_passes_count(exchange: Callable[..., Report]) -> None:
    exchange()
    loader = DataLoader(Numbers(), 4, num_workers=2, persistent_workers=True)
    assert len(list(loader)) == 6
    loader.collate_fn = len
    assert list(loader) == [4, 4, 4, 4, 4, 2]


def test_an_error_of_a_sample_is_the_programs_own(exchange: Callable[..., Report]) -> None:
    exchange()

    def broken(_: Any) -> Any:
        raise KeyError("seven")

    for workers in (0, 2):
        with pytest.raises(KeyError, match="seven"):
            list(DataLoader(Numbers(), 1, num_workers=workers, collate_fn=broken))


# What is left to torch


def iterator_of(loader: Any) -> Any:
    iterator = iter(loader)
    list(iterator)
    return iterator


def test_a_loader_that_is_left_to_torch_has_torchs_iterator_and_is_measured_once(
    exchange: Callable[..., Report],
) -> None:
    report = exchange(replace=False)
    loader = DataLoader(Numbers(), 4, num_workers=1, persistent_workers=True)
    assert isinstance(iterator_of(loader), dataloader._MultiProcessingDataLoaderIter)  # noqa: SLF001
    list(loader)
    row = only(report)
    assert (row.passes, row.batches, row.reason) == (2, 12, None)
    assert row.loaded_by == "torch, 1 process"
    assert 0 < row.first_seconds <= row.wait_seconds


class Drawing(Numbers):
    def __init__(self, source: str) -> None:
        super().__init__()
        self.source = source
        self.random = random.Random(4)
        self.generator = np.random.default_rng(4)

    def __getitem__(self, index: int) -> Any:
        draw = {
            "torch": lambda: torch.rand(()).item(),
            "random": random.random,
            "numpy.random": np.random.rand,
            "Drawing.random": self.random.random,
            "Drawing.generator": self.generator.random,
        }
        return float(draw[self.source]()), index


@pytest.mark.parametrize(
    "source", ["torch", "random", "numpy.random", "Drawing.random", "Drawing.generator"]
)
def test_samples_that_draw_in_the_programs_thread_stay_there_and_draw_the_same(
    source: str, exchange: Callable[..., Report]
) -> None:
    def run() -> Any:
        torch.manual_seed(1)
        random.seed(2)
        np.random.seed(3)  # noqa: NPY002  # what users of NumPy's global state call
        return digests(DataLoader(Drawing(source), 4, shuffle=True)), torch.rand(2).tolist()

    expected = run()
    report = exchange()
    assert run() == expected
    assert f"draw from {source}" in only(report).reason
    assert only(report).loaded_by == "torch, in-process"


def test_samples_that_set_an_attribute_stay_in_the_programs_thread(
    exchange: Callable[..., Report],
) -> None:
    class Counting(Numbers):
        count = 0

        def __getitem__(self, index: int) -> Any:
            self.count += 1
            return self.count

    report = exchange()
    dataset = Counting()
    assert [batch.tolist() for batch in DataLoader(dataset, 11)][1][-1] == 22
    assert dataset.count == 22
    assert "set Counting.count" in only(report).reason


def test_batches_with_gradients_stay_in_the_programs_thread(
    exchange: Callable[..., Report],
) -> None:
    report = exchange()
    weights = torch.ones(4, requires_grad=True)
    for batch in DataLoader(list(weights * 2), 2):  # type: ignore[arg-type]
        batch.sum().backward(retain_graph=True)
    assert weights.grad.tolist() == [2, 2, 2, 2]
    assert "gradients" in only(report).reason


# What is measured


def test_steps_end_the_program(exchange: Callable[..., Report]) -> None:
    for workers in (0, 1):
        report = exchange(steps=3)
        with pytest.raises(StepsDone):
            list(DataLoader(Numbers(), 4, num_workers=workers))
        assert only(report).batches == 3


def test_a_row_is_a_place_of_the_program(exchange: Callable[..., Report]) -> None:
    report = exchange()

    def make(size: int) -> Any:
        return DataLoader(Numbers(size), 4)

    for _ in range(3):
        list(make(8))
    list(make(4))
    assert [(row.passes, row.batches) for row in report.rows] == [(3, 6), (1, 1)]
    first, second = report.rows
    assert str(first.place) == str(second.place)
    assert "test_replaced_loaders.py" in str(first.place)
    assert first.place.callers != second.place.callers


def test_threads_can_be_given(exchange: Callable[..., Report]) -> None:
    report = exchange(threads=3)
    assert digests(DataLoader(Shared(), 4, num_workers=2), passes=1)
    list(DataLoader(Numbers(), 4, num_workers=2))
    assert [row.loaded_by for row in report.rows] == ["2 threads", "3 threads"]


def test_torch_still_has_what_is_used_of_its_private_names() -> None:
    iterator: Any = iter(DataLoader(Numbers(), 4))
    assert isinstance(iterator, dataloader._BaseDataLoaderIter)  # noqa: SLF001
    assert callable(iterator._dataset_fetcher.fetch)  # noqa: SLF001
    assert next(iterator._sampler_iter) == [0, 1, 2, 3]  # noqa: SLF001
    assert callable(DataLoader._get_iterator)  # noqa: SLF001
