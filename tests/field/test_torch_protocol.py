# ruff: noqa: SLF001  # it is about private names of torch's
"""torch's inner protocol, as frameworks use it: iterators, kept workers, and looks inside.

What each framework reads or sets was found in the sources of its release of November 2026: ignite
0.5.5, lightning 2.6.6, mmdet 3.3.0, torch_geometric 2.8.1, timm 1.0.31, torchdata 0.11.0,
ultralytics 8.4.190.  Accelerate, datasets, deepspeed, fastai, mmengine, MONAI, skorch and
transformers touch none of it, or on loaders of their own only.
"""

from __future__ import annotations

import copy
import pickle
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from threadloader import ThreadLoader
from threadloader._loader.arguments import ARGUMENTS


def batches(loader: Any) -> list[list[Any]]:
    return [batch.tolist() for batch in loader]


class Forever:
    """ultralytics' `_RepeatSampler`, and timm's."""

    def __init__(self, sampler: Any) -> None:
        self.sampler = sampler

    def __len__(self) -> int:
        return len(self.sampler)

    def __iter__(self) -> Iterator[Any]:
        while True:
            yield from self.sampler


class Level:
    """Its samples are what an attribute was when a worker copied it."""

    def __init__(self) -> None:
        self.level = 0
        self.threads: list[threading.Thread] = []  # of each sample, of all copies

    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> int:
        self.threads.append(threading.current_thread())
        return self.level


THREADS = [{}, {"threads": 2}, {"threads": 2, "persistent_workers": True}, {"threads": 0}]


@pytest.mark.parametrize("options", THREADS, ids=str)
def test_get_iterator_is_a_fresh_one_whatever_iter_is_overridden_by(
    options: dict[str, Any],
) -> None:
    class Infinite(ThreadLoader[Any]):  # ultralytics' InfiniteDataLoader
        iterator: Any = None

        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, **kwargs)
            object.__setattr__(self, "batch_sampler", Forever(self.batch_sampler))

        def __len__(self) -> int:
            return len(self.batch_sampler.sampler)  # type: ignore[union-attr]

        def __iter__(self) -> Any:
            self.iterator = self.iterator or self._get_iterator()
            for _ in range(len(self)):
                yield next(self.iterator)

        def reset(self) -> None:
            if hasattr(self.iterator, "_workers"):
                self.iterator._shutdown_workers()
            self.iterator = None

    loader = Infinite(range(8), batch_size=2, **options)
    expected = [[0, 1], [2, 3], [4, 5], [6, 7]]
    assert [batches(loader), batches(loader)] == [expected, expected]
    loader.reset()
    assert batches(loader) == expected
    loader.reset()
    loader.close()


@pytest.mark.parametrize("dismiss", ["None", "del"])
def test_without_an_iterator_kept_workers_are_dismissed(dismiss: str) -> None:
    levels = Level()
    with ThreadLoader(levels, batch_size=4, threads=2, persistent_workers=True) as loader:
        assert loader._iterator is None
        iterator = iter(loader)
        assert loader._iterator is iterator
        assert batches(iterator) == [[0] * 4] * 2
        assert batches(loader) == [[0] * 4] * 2
        kept = set(levels.threads)
        assert len(kept) <= 2
        assert loader._iterator is not None
        assert batches(loader._iterator) == []
        loader._DataLoader__initialized = False  # mmdet's PipelineSwitchHook
        if dismiss == "del":  # Lightning's teardown
            del loader._iterator
            assert not hasattr(loader, "_iterator")
        else:
            loader._iterator = None
            assert loader._iterator is None
        loader._DataLoader__initialized = True
        levels.level = 1
        assert batches(loader) == [[1] * 4] * 2
        assert not kept & set(levels.threads[16:])


def test_an_epoch_goes_on_when_its_kept_workers_are_dismissed() -> None:
    levels = Level()
    with ThreadLoader(levels, batch_size=1, threads=2, persistent_workers=True) as loader:
        iterator = iter(loader)
        next(iterator)
        loader._iterator = None
        levels.level = 1
        assert batches(loader) == [[1]] * 8
        assert batches(iterator) == [[0]] * 7


def test_an_iterator_is_kept_only_with_persistent_workers() -> None:
    loader = ThreadLoader(range(4), batch_size=2, threads=2)
    iterator = iter(loader)
    assert loader._iterator is None
    loader._iterator = iterator  # PyG's DistLoader keeps one itself
    assert loader._iterator is iterator
    del loader._iterator
    assert batches(iterator) == [[0, 1], [2, 3]]


# On torch's iterator without worker processes, but for what says how it fetches.
READ = [
    *("_IterableDataset_len_called", "_auto_collation", "_dataset", "_dataset_kind", "_drop_last"),
    *("_index_sampler", "_num_yielded", "_persistent_workers", "_pin_memory", "_timeout"),
    "_collate_fn",
]
ABSENT = ["_workers", "_shutdown_workers", "_index_queues", "_pin_memory_thread", "_task_info"]


@pytest.mark.parametrize("iterable", [False, True])
@pytest.mark.parametrize("options", THREADS, ids=str)
def test_an_iterator_has_torchs_attributes_or_none_of_the_name(
    options: dict[str, Any], iterable: bool
) -> None:
    data = pytest.importorskip("torch.utils.data")

    class Stream(data.IterableDataset):  # type: ignore[misc, name-defined]
        def __iter__(self) -> Iterator[int]:
            return iter(range(6))

        def __len__(self) -> int:
            return 6

    if iterable and options.get("threads"):
        options = options | {"threads": 1}
    dataset = Stream() if iterable else range(6)
    torchs = data.DataLoader(dataset, batch_size=2)
    with ThreadLoader(dataset, batch_size=2, **options) as loader:
        ours = {"_index_sampler": loader.batch_sampler, "_num_yielded": 1}
        ours["_persistent_workers"] = "persistent_workers" in options
        assert len(torchs) == len(loader) == 3
        theirs, iterator = iter(torchs), iter(loader)
        next(theirs)
        next(iterator)
        for name in READ:
            assert getattr(iterator, name) == ours.get(name, getattr(theirs, name)), name
        assert iterator._num_workers == loader.num_workers
        assert isinstance(iterator._base_seed, int)
        for name in ABSENT:
            assert not hasattr(iterator, name)
            assert not hasattr(theirs, name)
        assert loader._dataset_kind == torchs._dataset_kind  # ignite's DeterministicEngine
        assert loader._IterableDataset_len_called == torchs._IterableDataset_len_called
        with pytest.raises(NotImplementedError):
            pickle.dumps(iterator)
        iterator.close()


@pytest.mark.parametrize("options", [*THREADS, {"threads": 2, "in_order": False}], ids=str)
@pytest.mark.parametrize("size", [2, None])
def test_indices_that_are_taken_out_of_the_sampler_are_left_out(
    options: dict[str, Any], size: int | None
) -> None:
    with ThreadLoader(range(12), batch_size=size, **options) as loader:
        iterator = iter(loader)
        got: list[Any] = []
        taken: list[Any] = []
        for _ in range(2):
            got.append(next(iterator))
            taken.append(next(iterator._sampler_iter))
        assert iterator._num_yielded == 2
        taken += list(iterator._sampler_iter)
        flat = [index for each in taken for index in (each if size else [each])]
        delivered = [int(value) for batch in got for value in (batch.tolist() if size else [batch])]
        assert sorted(flat + delivered) == list(range(12))
        if options.get("in_order", True):
            assert delivered == ([0, 1, 4, 5] if size else [0, 2])
        assert next(iterator, None) is None


def test_a_sampler_that_fails_does_so_for_who_takes_its_indices() -> None:
    def broken() -> Iterator[int]:
        yield 0
        raise OSError

    for options in THREADS:
        with ThreadLoader(range(3), sampler=broken(), **options) as loader:
            iterator = iter(loader)
            assert next(iterator._sampler_iter) == [0]
            with pytest.raises(OSError, match=r"^$"):
                next(iterator._sampler_iter)


NAMES = dict.fromkeys(ARGUMENTS, "mine")


def _before(kind: Callable[..., Any]) -> Callable[..., Any]:
    class Before(kind):  # type: ignore[misc, valid-type]  # PyG's NodeLoader
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            for name, value in NAMES.items():
                setattr(self, name, value)
            super().__init__(*args, **kwargs)

    return Before


def _of_class(kind: Callable[..., Any]) -> Callable[..., Any]:
    return type("OfClass", (kind,), {name: property(lambda _, v=v: v) for name, v in NAMES.items()})


@pytest.mark.parametrize("made", [_before, _of_class])
def test_a_subclasss_own_attributes_are_kept_and_mean_nothing_here(
    made: Callable[..., Any],
) -> None:
    own = made(ThreadLoader)
    with own(range(4), batch_size=2) as loader:
        for twin in (loader, copy.copy(loader)):
            assert batches(twin) == [[0, 1], [2, 3]]
            twin.load_state_dict(twin.state_dict())
            assert batches(twin) == [[0, 1], [2, 3]]
            assert {name: getattr(twin, name) for name in NAMES} == NAMES
        assert loader.statistics().epochs
    if made is not _of_class:
        loader.seed = "another"  # it stays the subclass's own
        assert batches(loader) == [[0, 1], [2, 3]]


def test_an_argument_that_was_given_is_not_a_subclasss_own() -> None:
    class Own(ThreadLoader[Any]):
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            self.seed = "mine"  # type: ignore[assignment]
            self.prefetch = "mine"  # type: ignore[assignment]
            super().__init__(*args, **kwargs)

    loader = Own(range(8), shuffle=True, seed=3)
    assert (loader.seed, loader.prefetch) == ("mine", "mine")
    expected = ThreadLoader(range(8), shuffle=True, seed=3)
    assert batches(loader) == batches(expected)
