"""`replay`: a sample or a batch as the epoch had it, and nothing of the run is changed by it."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from support.patience import PATIENCE, Spawn

from threadloader import ThreadLoader

SIZE, ROWS = 40, 8


class Drawing:
    """Samples that draw from each kind of random state."""

    def __init__(self) -> None:
        self.rng = np.random.default_rng(1)
        self.bad: int | None = None

    def __len__(self) -> int:
        return SIZE

    def __getitem__(self, index: int) -> Any:
        drawn = random.random() + np.random.random() + self.rng.random()  # noqa: NPY002
        if index == self.bad:
            raise LookupError(index, drawn)
        return np.array([index, drawn])


class Whole(Drawing):
    def __getitems__(self, indices: list[int]) -> list[Any]:
        return [self[index] for index in indices]


class OwnSampler:
    """Draws from a generator of its own, which goes on from epoch to epoch."""

    def __init__(self) -> None:
        self.rng = random.Random(0)

    def __len__(self) -> int:
        return SIZE

    def __iter__(self) -> Iterator[int]:
        return iter(self.rng.sample(range(SIZE), SIZE))


def noisy(samples: list[Any]) -> Any:
    return np.stack(samples) + random.random()


LOADERS: dict[str, dict[str, Any]] = {
    "shuffled": {"shuffle": True, "seed": 3},
    "in order": {"seed": 3},
    "keyed": {"shuffle": "keyed", "seed": 3},
    "a collate function that draws": {"collate_fn": noisy, "shuffle": True, "seed": 3},
    "a part of several ranks": {"shard": (1, 2), "shuffle": True, "seed": 3},
}


def loader_of(kind: str, dataset: Any, **options: Any) -> ThreadLoader[Any]:
    given = {"threads": 2, **LOADERS[kind], **options}
    return ThreadLoader(dataset, ROWS, output="numpy", **given)


def epoch_of(loader: ThreadLoader[Any]) -> list[Any]:
    return [batch.tolist() for batch in loader]


@pytest.mark.parametrize("dataset", [Drawing, Whole])
@pytest.mark.parametrize("kind", LOADERS)
def test_each_batch_and_row_is_that_of_the_epoch(kind: str, dataset: Any, spawn: Spawn) -> None:
    def consume() -> None:
        with loader_of(kind, dataset()) as loader:
            for _ in range(2):
                epoch = epoch_of(loader)
            for number in (len(epoch) - 1, 0):
                assert loader.replay(batch=number).tolist() == epoch[number]
                if "collate_fn" not in LOADERS[kind]:
                    row = loader.replay(batch=number, row=2)
                    assert row.tolist() == epoch[number][2]
                    index = int(row[0])
                    assert loader.replay(batch=number, index=index).tolist() == row.tolist()

    spawn(consume).result(PATIENCE)


@pytest.mark.parametrize("kind", LOADERS)
def test_the_run_goes_on_as_if_nothing_had_been_asked(kind: str) -> None:
    def run(*, replays: bool) -> list[Any]:
        random.seed(5)
        np.random.seed(5)  # noqa: NPY002
        found = []
        with loader_of(kind, Drawing()) as ours:
            for epoch in range(3):
                iterator = iter(ours)
                found.append(next(iterator).tolist())
                if replays:
                    ours.replay(batch=1)
                    ours.replay(batch=0, row=3)
                found += [batch.tolist() for batch in iterator]
                if replays and epoch:
                    ours.replay(batch=2, row=0)
                found.append([random.random(), np.random.random()])  # noqa: NPY002
        return found

    assert run(replays=True) == run(replays=False)


def test_an_index_that_comes_twice_in_a_batch_needs_a_row() -> None:
    with loader_of("in order", Drawing()) as loader:
        (batch, *_) = epoch_of(loader)
        with pytest.raises(IndexError, match=r"rows \[\] of the 8 of batch 0 have row=8"):
            loader.replay(batch=0, row=ROWS)
        assert loader.replay(batch=0, index=5).tolist() == batch[5]
    own = torch_sampler([3, 5, 3, 7])
    with ThreadLoader(Drawing(), 4, sampler=own, seed=1, output="numpy") as loader:
        order = [int(index) for index, _ in epoch_of(loader)[0]]
        rows = [row for row, index in enumerate(order) if index == 3]
        with pytest.raises(IndexError, match=rf"rows \[{rows[0]}, {rows[1]}\] .* give row="):
            loader.replay(batch=0, index=3)


def torch_sampler(indices: list[int]) -> Any:
    return pytest.importorskip("torch.utils.data").SubsetRandomSampler(indices)


FAILING: dict[str, dict[str, Any]] = {
    "no seed": {"shuffle": True},
    "a seed": {"shuffle": True, "seed": 3},
    "a sampler of the user's": {"sampler": OwnSampler},
    "a list": {"sampler": lambda: [21, *range(20)]},
    "ranks": {"shard": (0, 2), "seed": 3},
}


@pytest.mark.parametrize("threads", [0, 2])
@pytest.mark.parametrize("dataset", [Drawing, Whole])
@pytest.mark.parametrize("kind", FAILING)
def test_an_error_is_raised_again_with_what_was_drawn(
    kind: str, dataset: Any, threads: int
) -> None:
    options = dict(FAILING[kind])
    if "sampler" in options:
        options["sampler"] = options["sampler"]()
    data = dataset()
    with ThreadLoader(data, ROWS, output="numpy", threads=threads, **options) as loader:
        data.bad = int(next(iter(loader))[0][0]) if kind == "ranks" else 21
        with pytest.raises(LookupError) as first:
            list(loader)
        again = first.value
        for _ in range(2):
            with pytest.raises(LookupError) as found:
                loader.replay(again)
            assert found.value.args == again.args
        data.bad = None
        list(loader)  # another epoch, with another order
        mended = loader.replay(again)
        assert again.args[0] in np.atleast_2d(mended)[:, 0]
        assert loader.replay(again).tolist() == mended.tolist()


def test_a_batch_that_can_not_be_collated_is_made_again_whole() -> None:
    def fails(samples: list[Any]) -> Any:
        raise LookupError(len(samples), random.random())

    with ThreadLoader(Drawing(), ROWS, collate_fn=fails, threads=2) as loader:
        with pytest.raises(LookupError) as first:
            list(loader)
        with pytest.raises(LookupError) as again:
            loader.replay(first.value)
        assert again.value.args == first.value.args


def test_an_earlier_epoch_is_drawn_again_by_its_seed() -> None:
    with loader_of("shuffled", Drawing()) as loader:
        epochs = [epoch_of(loader) for _ in range(3)]
        for number, epoch in enumerate(epochs):
            assert loader.replay(epoch=number, batch=4).tolist() == epoch[4]
    with loader_of("shuffled", Drawing()) as later:  # before its first epoch, too
        assert later.replay(epoch=1, batch=3, row=1).tolist() == epochs[1][3][1]


@pytest.mark.parametrize("options", [{"shuffle": True}, {"sampler": OwnSampler(), "seed": 3}])
def test_a_batch_whose_order_follows_from_no_seed_is_not_found_by_its_number(options: Any) -> None:
    with (
        ThreadLoader(Drawing(), ROWS, **options) as loader,
        pytest.raises(ValueError, match="with a seed=, and no sampler of yours"),
    ):
        loader.replay(batch=0)


@pytest.mark.parametrize("kind", ["shuffled", "keyed"])
@pytest.mark.parametrize("ranks", [1, 2])
def test_an_epoch_that_was_resumed_has_its_batches(kind: str, ranks: int) -> None:
    shards: list[Any] = [(rank, 2) for rank in range(2)]
    with loader_of(kind, Drawing(), shard=shards[0]) as begun:
        next(iter(begun))
        state = begun.state_dict()
    with loader_of(kind, Drawing(), shard=shards[0] if ranks == 2 else (0, 1)) as loader:
        loader.load_state_dict(state)
        iterator = iter(loader)
        number = loader.state_dict()["lanes"][0]["batches"]  # 1, or 0 where ranks are others
        assert next(iterator).tolist() == loader.replay(batch=number).tolist()


def test_what_can_not_be_replayed_is_refused() -> None:
    with loader_of("shuffled", Drawing()) as loader:
        with pytest.raises(IndexError, match="no batch 5"):
            loader.replay(batch=5)
        with pytest.raises(IndexError, match="index=99"):
            loader.replay(batch=0, index=99)
        for wrong in ({"epoch": -1}, {"batch": -1}, {"row": -1}):
            with pytest.raises(IndexError, match=r"batch -1|epoch -1|row=-1"):
                loader.replay(**{"batch": 0, **wrong})
        with pytest.raises(ValueError, match="no note"):
            loader.replay(LookupError(1))
        with pytest.raises(TypeError, match="needs an error"):
            loader.replay()
    with (
        ThreadLoader(range(8), 4, isolate_rng=False) as shared,
        pytest.raises(ValueError, match="isolate_rng=False"),
    ):
        shared.replay(batch=0)
    with (
        ThreadLoader(iter(range(4)), 2) as stream,
        pytest.raises(TypeError, match="iterable dataset"),
    ):
        stream.replay(batch=0)
