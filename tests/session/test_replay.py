"""`replay`: a sample or a batch as the epoch had it, and nothing of the run is changed by it."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import suppress
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
    """Tells one epoch from another, as torch's ``DistributedSampler`` does."""

    def __init__(self) -> None:
        self.epoch = 0

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __len__(self) -> int:
        return SIZE

    def __iter__(self) -> Iterator[int]:
        return iter(random.Random(self.epoch).sample(range(SIZE), SIZE))


def noisy(samples: list[Any]) -> Any:
    return np.stack(samples) + random.random()


LOADERS: dict[str, dict[str, Any]] = {
    "shuffled": {"shuffle": True},
    "with a seed": {"shuffle": True, "seed": 3},
    "in order": {},
    "keyed": {"shuffle": "keyed", "seed": 3},
    "a collate function that draws": {"collate_fn": noisy, "shuffle": True},
    "a sampler of the user's": {"sampler": OwnSampler(), "seed": 3},
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
        options: dict[str, Any] = {}
        if "sampler" in LOADERS[kind]:
            options["sampler"] = OwnSampler()
        elif "seed" not in LOADERS[kind]:
            options["generator"] = np.random.default_rng(2)
        with loader_of(kind, Drawing(), **options) as ours:
            for epoch in range(3):
                if "sampler" in options:
                    options["sampler"].set_epoch(epoch)
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


class Counting:
    """Draws from a generator of its own, which nobody tells of an epoch."""

    def __init__(self) -> None:
        self.rng = random.Random(0)

    def __len__(self) -> int:
        return SIZE

    def __iter__(self) -> Iterator[int]:
        return iter(self.rng.sample(range(SIZE), SIZE))


class Global(Counting):
    def __iter__(self) -> Iterator[int]:
        return iter(random.sample(range(SIZE), SIZE))


class Saved(Counting):
    """Keeps its place, and its generator's state, in a state of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.place, self.start = 0, self.rng.getstate()

    def __iter__(self) -> Iterator[int]:
        self.rng.setstate(self.start)
        order = self.rng.sample(range(SIZE), SIZE)
        while self.place < SIZE:
            self.place += 1
            yield order[self.place - 1]
        self.place, self.start = 0, self.rng.getstate()

    def state_dict(self) -> dict[str, Any]:
        return {"place": self.place, "start": self.start}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.place, self.start = state["place"], state["start"]


def torchs_own() -> Any:
    data = pytest.importorskip("torch.utils.data")
    torch = pytest.importorskip("torch")
    return data.RandomSampler(range(SIZE), generator=torch.Generator().manual_seed(4))


@pytest.mark.parametrize("sampler", [Counting, Global, Saved, torchs_own])
def test_a_sampler_of_the_users_is_left_alone_and_its_order_is_right_or_refused(
    sampler: Any,
) -> None:
    def run(*, replays: bool) -> list[Any]:
        random.seed(5)
        found: list[Any] = []
        with ThreadLoader(
            Drawing(), ROWS, sampler=sampler(), seed=3, threads=2, output="numpy"
        ) as ours:
            for epoch in range(3):
                taken = []
                for number, batch in enumerate(ours):
                    taken.append(batch.tolist())
                    if replays and number in {0, 3}:
                        with suppress(ValueError):
                            assert ours.replay(batch=epoch).tolist()[0][0] >= 0
                            assert ours.replay(batch=0).tolist() == taken[0]
                if replays:
                    with suppress(ValueError):
                        assert ours.replay(batch=2).tolist() == taken[2]
                found += [taken, random.random()]
        return found

    assert run(replays=True) == run(replays=False)


def test_an_index_that_comes_twice_in_a_batch_needs_a_row() -> None:
    with ThreadLoader(Drawing(), 4, sampler=[3, 5, 3, 7], seed=1, output="numpy") as loader:
        (batch,) = (batch.tolist() for batch in loader)
        with pytest.raises(IndexError, match=r"rows \[0, 2\] .* give row="):
            loader.replay(batch=0, index=3)
        assert [loader.replay(batch=0, row=row).tolist() for row in (0, 2)] == [batch[0], batch[2]]


@pytest.mark.parametrize("threads", [0, 2])
@pytest.mark.parametrize("dataset", [Drawing, Whole])
def test_an_error_is_raised_again_with_what_was_drawn(dataset: Any, threads: int) -> None:
    data = dataset()
    data.bad = 21
    with loader_of("shuffled", data, threads=threads) as loader:
        with pytest.raises(LookupError) as first:
            list(loader)
        for _ in range(2):
            with pytest.raises(LookupError) as again:
                loader.replay(first.value)
            assert again.value.args == first.value.args
        data.bad = None
        assert int(np.ravel(loader.replay(first.value))[0]) >= 0  # mended: it is a sample now


@pytest.mark.parametrize("kind", ["with a seed", "shuffled"])
def test_an_error_is_of_its_own_epoch(kind: str) -> None:
    data = Drawing()
    data.bad = 21
    with loader_of(kind, data) as loader:
        with pytest.raises(LookupError) as failed:
            list(loader)
        data.bad = None
        expected = loader.replay(failed.value).tolist()
        list(loader)
        if kind == "with a seed":
            assert loader.replay(failed.value).tolist() == expected
        else:
            with pytest.raises(ValueError, match="order of epoch 0 is not known"):
                loader.replay(failed.value)


def test_an_earlier_epoch_is_drawn_again_by_its_seed() -> None:
    with loader_of("with a seed", Drawing()) as loader:
        epochs = [epoch_of(loader) for _ in range(3)]
        for number, epoch in enumerate(epochs):
            assert loader.replay(epoch=number, batch=4).tolist() == epoch[4]
    with loader_of("with a seed", Drawing()) as later:  # before its first epoch, too
        assert later.replay(epoch=1, batch=3, row=1).tolist() == epochs[1][3][1]


def test_what_can_not_be_replayed_is_refused() -> None:
    with loader_of("shuffled", Drawing()) as loader:
        with pytest.raises(ValueError, match="no epoch was begun"):
            loader.replay(batch=0)
        list(loader)
        list(loader)
        with pytest.raises(ValueError, match="order of epoch 0 is not known"):
            loader.replay(epoch=0, batch=0)
        with pytest.raises(IndexError, match="no batch 5"):
            loader.replay(batch=5)
        with pytest.raises(IndexError, match="no index 99"):
            loader.replay(batch=0, index=99)
        with pytest.raises(IndexError, match=f"{ROWS} rows"):
            loader.replay(batch=0, row=ROWS)
        for wrong in ({"epoch": -1}, {"batch": -1}, {"row": -1}):
            with pytest.raises(ValueError, match=r"at least 0, but got -1"):
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
