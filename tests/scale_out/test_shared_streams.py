"""``shard=`` for iterable datasets: who is asked for which part; all parts are the whole."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.made_shards import write_shard

from threadloader import StateError, ThreadLoader, _torch, get_worker_info, pack
from threadloader.datasets import Mixture, TarStream


class Parts(_torch.IterableDataset):  # type: ignore[type-arg]
    """Numbers, each n-th of which is a part."""

    def __init__(self, numbers: Any = range(40)) -> None:
        self.numbers = numbers

    def shard(self, rank: int, world_size: int, epoch: int) -> Parts:  # noqa: ARG002
        return Parts(self.numbers[rank::world_size])

    def __iter__(self) -> Iterator[Any]:
        return iter(self.numbers)


def loaded(dataset: Any, rank: int, world_size: int, **options: Any) -> list[Any]:
    loader: ThreadLoader[Any] = ThreadLoader(
        dataset,
        **{"batch_size": None, "threads": 1, "seed": 5, "uneven": "short"} | options,
        shard=(rank, world_size),
    )
    return list(loader)


def of_all_ranks(make: Any, world_size: int, **options: Any) -> list[Any]:
    return [
        sample
        for rank in range(world_size)
        for sample in loaded(make(), rank, world_size, **options)
    ]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for file in range(12):
        samples = {f"{file}-{n}": {"cls": f"{100 * file + n}".encode()} for n in range(3 + file)}
        write_shard(tmp_path / f"{file}.tar", samples)
    return tmp_path


def cls_only(folder: Path, **options: Any) -> TarStream:
    return TarStream(str(folder / "*.tar"), fields=("cls",), transform=first, **options)


def first(sample: Any) -> int:
    return int(sample[0])


@pytest.mark.parametrize("threads", [0, 1, 3])
@pytest.mark.parametrize("kind", ["tar", "mixture", "pack"])
def test_all_ranks_together_have_all(kind: str, threads: int, folder: Path) -> None:
    lengths = [np.full(1 + n % 5, n + 1) for n in range(60)]

    def mixed() -> Any:
        sources = {
            "files": (cls_only(folder, shuffle=3), 3),
            "parts": (Parts(range(2000, 2040)), 1),
            "map": (range(3000, 3020), 1),
        }
        return Mixture(sources, stop="once")

    files = list(cls_only(folder))
    makes, expected = {
        "tar": (
            [
                partial(cls_only, folder, **o)
                for o in ({}, {"shuffle": 4}, {"shuffle": 4, "seed": 1})
            ],
            files,
        ),
        "mixture": ([mixed], [*files, *range(2000, 2040), *range(3000, 3020)]),
        "pack": ([lambda: pack(Parts(lengths), 8)], np.concatenate(lengths).tolist()),
    }[kind]
    for make, world_size in product(makes, (1, 2, 4)):
        got = of_all_ranks(make, world_size, threads=threads)
        if kind == "pack":
            ids = np.concatenate([np.asarray(row["input_ids"]) for row in got])
            got = ids[ids > 0].tolist()
        assert sorted(got) == sorted(expected)


def test_the_epoch_of_the_loader_decides_unless_one_was_set(folder: Path) -> None:
    def epochs(stream: TarStream) -> list[list[int]]:
        loader: ThreadLoader[Any] = ThreadLoader(
            stream, None, threads=1, shard=(0, 2), uneven="short", seed=5
        )
        return [list(loader) for _ in range(2)]

    one, two = epochs(cls_only(folder, shuffle=4, seed=1))
    assert one != two
    stream = cls_only(folder, shuffle=4, seed=1)
    stream.set_epoch(1)
    assert epochs(stream) == [two, two]


class Asked(Parts):
    """Tells what it was asked for, and who reads it."""

    def shard(self, rank: int, world_size: int, epoch: int) -> Any:
        self.numbers = [(rank, world_size, epoch)]
        return self

    def __iter__(self) -> Iterator[Any]:
        info = get_worker_info()
        told = None if info is None else (info.id, info.num_workers)
        yield json.dumps([*self.numbers[0], told])


@pytest.mark.parametrize(
    ("threads", "asked"),
    [(0, [1, 3, 0, None]), (1, [1, 3, 0, [0, 1]])],
)
def test_a_dataset_is_asked_once_an_epoch(threads: int, asked: Any) -> None:
    loader: ThreadLoader[Any] = ThreadLoader(
        Asked(), None, threads=threads, shard=(1, 3), uneven="short"
    )
    for epoch in range(2):
        (told,) = loader
        assert json.loads(told) == [*asked[:2], epoch, asked[3]]


def test_a_dataset_that_shares_itself_out_knows_its_worker() -> None:
    class Itself(Asked):
        def shard(self, rank: int, world_size: int, epoch: int) -> None:  # type: ignore[override]
            super().shard(rank, world_size, epoch)

    parts = [json.loads(told) for told in loaded(Itself(), 0, 2, threads=2)]
    assert [told for *_, told in parts] == [[0, 2], [1, 2]]


class HuggingFaces(Parts):
    __module__ = "datasets.iterable_dataset"

    def shard(self, num_shards: int, index: int) -> Any:  # type: ignore[override]
        raise AssertionError(num_shards, index)


def test_what_can_not_be_asked_is_refused() -> None:
    for dataset in ((n for n in range(3)), HuggingFaces()):
        with pytest.raises(TypeError, match=r"shard\(rank, world_size, epoch\)") as refused:
            ThreadLoader(dataset, shard=(0, 2))
        assert ("split_dataset_by_node" in str(refused.value)) is (type(dataset) is HuggingFaces)
        with pytest.raises(TypeError, match="shard needs an iterable dataset"):
            loaded(pack(dataset, 4), 0, 2)


class Drawing(Parts):
    def shard(self, rank: int, world_size: int, epoch: int) -> Any:  # noqa: ARG002
        return self

    def __iter__(self) -> Iterator[float]:
        for _ in range(3):
            yield random.random()


@pytest.mark.parametrize("threads", [0, 1])
def test_ranks_draw_numbers_of_their_own(threads: int) -> None:
    one, other = (loaded(Drawing(), rank, 2, threads=threads) for rank in range(2))
    assert not {*one} & {*other}
    assert loaded(Drawing(), 1, 2, threads=threads) == other


def loader_of(dataset: Any, rank: int, world_size: int, **options: Any) -> ThreadLoader[Any]:
    return ThreadLoader(
        dataset,
        4,
        **{"threads": 1, "seed": 5, "output": "numpy"} | options,
        shard=(rank, world_size),
        uneven="short",
    )


def numbers(batches: Any) -> list[int]:
    return [number for batch in batches for number in batch.tolist()]


@pytest.mark.parametrize("threads", [0, 1, 2])
@pytest.mark.parametrize("kind", ["stream", "parts", "pack"])
def test_each_rank_goes_on_from_a_state_of_its_own(kind: str, threads: int, folder: Path) -> None:
    def make() -> Any:
        if kind == "pack":
            return pack(Parts([np.full(1 + n % 3, n) for n in range(60)]), 3, window=2)
        return cls_only(folder, shuffle=3) if kind == "stream" else Parts()

    def collated(batches: Any) -> list[int]:
        if kind == "pack":
            return [n for batch in batches for n in batch["input_ids"].ravel().tolist()]
        return numbers(batches)

    for rank in range(2):
        whole = loader_of(make(), rank, 2, threads=threads)
        expected = [collated(whole), collated(whole)]
        before, after = (loader_of(make(), rank, 2, threads=threads) for _ in range(2))
        iterator = iter(before)
        got = collated([next(iterator), next(iterator)])
        after.load_state_dict(before.state_dict())
        if kind == "parts":
            with pytest.warns(UserWarning, match="is read again"):
                got += collated(after)
        else:
            got += collated(after)
        assert [got, collated(after)] == expected


def test_in_the_midst_of_an_epoch_as_many_ranks_go_on() -> None:
    loader = loader_of(Parts(), 1, 2)
    next(iter(loader))
    state = loader.state_dict()
    for shard, name in (((1, 4), "world_size in shard was 2"), ((0, 2), "rank in shard was 1")):
        with pytest.raises(StateError, match=name):
            loader_of(Parts(), *shard).load_state_dict(state)
    with pytest.raises(StateError, match="world_size in shard was 2 and is None"):
        ThreadLoader(Parts(), 4, threads=1, seed=5, output="numpy").load_state_dict(state)


def test_between_two_epochs_any_number_of_ranks_goes_on() -> None:
    loader = loader_of(Drawing(), 1, 2)
    list(loader)
    expected = loader_of(Drawing(), 2, 3)
    list(expected)
    other = loader_of(Drawing(), 2, 3)
    other.load_state_dict(loader.state_dict())
    assert [batch.tolist() for batch in other] == [batch.tolist() for batch in expected]
