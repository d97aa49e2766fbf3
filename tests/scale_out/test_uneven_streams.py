"""Ranks that read iterable datasets, and end at different steps: each goes as many as the others.

The ranks are threads here, with a barrier for each step as DDP has one: whoever goes a step alone
would wait for ever.  `test_streams_in_processes` has real ones.
"""

from __future__ import annotations

import threading
from itertools import count, islice
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from support.patience import PATIENCE
from support.rank_threads import RankThreads

from threadloader import EmptyReplicaWarning, RankError, ThreadLoader
from threadloader._session import ballots
from threadloader._session.ballots import RankBallot

if TYPE_CHECKING:
    from collections.abc import Iterator

    from support.patience import Spawn


class Files:
    """Samples in files of different lengths, which are shared out."""

    def __init__(self, *lengths: int) -> None:
        self.files = [range(1000 * n, 1000 * n + length) for n, length in enumerate(lengths)]
        self.asked: list[tuple[int, int, int]] = []

    def shard(self, rank: int, world_size: int, epoch: int) -> Files:
        share = Files()
        share.files = self.files[rank::world_size]
        self.asked.append((rank, world_size, epoch))
        return share

    def __iter__(self) -> Iterator[int]:
        for file in self.files:
            yield from file


@pytest.fixture(params=[2, 3])
def world_size(request: pytest.FixtureRequest) -> int:
    return int(request.param)


@pytest.fixture
def ranks(monkeypatch: pytest.MonkeyPatch, spawn: Spawn, world_size: int) -> RankThreads:
    return RankThreads(monkeypatch, spawn, world_size)


def batches(loader: Any, barrier: threading.Barrier | None = None) -> list[list[int]]:
    got = []
    for batch in loader:
        got.append(np.asarray(batch).tolist())
        if barrier is not None:
            barrier.wait(PATIENCE)
    return got


def loader_of(dataset: Any, **options: Any) -> ThreadLoader[Any]:
    return ThreadLoader(dataset, 2, **{"threads": 1, "seed": 3, "shard": "auto"} | options)


LENGTHS = (8, 4, 14)  # of the ranks' files: 4, 2 and 7 batches


@pytest.mark.parametrize("threads", [0, 1])
@pytest.mark.parametrize("epochs", [1, 2])
def test_drop_ends_all_ranks_with_the_first_that_ends(
    threads: int, epochs: int, ranks: RankThreads
) -> None:
    barrier = threading.Barrier(ranks.world_size)

    def load(_: int) -> Any:
        with loader_of(
            Files(*LENGTHS[: ranks.world_size]), threads=threads, uneven="drop"
        ) as loader:
            return [batches(loader, barrier) for _ in range(epochs)]

    for rank, got in enumerate(ranks.run(load)):
        first = 1000 * rank
        assert got == [[[first, first + 1], [first + 2, first + 3]]] * epochs


@pytest.mark.parametrize("threads", [0, 1])
def test_pad_repeats_the_last_batch_until_the_last_rank_ends(
    threads: int, ranks: RankThreads
) -> None:
    barrier = threading.Barrier(ranks.world_size)
    lengths = LENGTHS[: ranks.world_size]

    def load(_: int) -> Any:
        with loader_of(Files(*lengths), threads=threads) as loader:
            got = []
            for batch in loader:
                got.append(np.asarray(batch).tolist())
                batch[:] = -1  # what the loop makes of it does not come again
                barrier.wait(PATIENCE)
            return got

    most = max(lengths) // 2
    for rank, got in enumerate(ranks.run(load)):
        own = lengths[rank] // 2
        assert got[:own] == [[1000 * rank + 2 * n, 1000 * rank + 2 * n + 1] for n in range(own)]
        assert got[own:] == [got[own - 1]] * (most - own)


@pytest.mark.parametrize("uneven", ["drop", "pad"])
def test_ranks_that_leave_after_the_same_step_can_go_on(uneven: Any, ranks: RankThreads) -> None:
    barrier = threading.Barrier(ranks.world_size)

    def load(rank: int) -> Any:
        loader = loader_of(Files(20, 20, 20), uneven=uneven, prefetch=1 + 2 * rank)
        return [
            sum(barrier.wait(PATIENCE) >= 0 for _ in islice(loader, most)) for most in (3, 1, 100)
        ]

    assert {tuple(counts) for counts in ranks.run(load)} <= {(3, 1, 10), (3, 1, 20)}


@pytest.mark.parametrize("world_size", [2])
@pytest.mark.parametrize("uneven", ["drop", "pad"])
def test_a_rank_that_leaves_alone_is_named_to_the_others(uneven: Any, ranks: RankThreads) -> None:
    left = threading.Event()

    def load(rank: int) -> Any:
        loader = loader_of(Files(200, 200), uneven=uneven, prefetch=2)
        for step, _ in enumerate(loader, 1):
            if rank and step == 3:
                break
            if step == 4:
                left.wait(PATIENCE)
        left.set()
        return step

    error, steps = ranks.run(load)
    assert isinstance(error, RankError)
    assert "rank 1 left the epoch by step" in str(error)
    assert steps == 3


@pytest.mark.parametrize("world_size", [3])
@pytest.mark.parametrize("uneven", ["drop", "pad"])
def test_a_rank_that_does_not_come_is_named_in_bounded_time(
    uneven: Any, ranks: RankThreads, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ballots, "RankBallot", lambda *args: RankBallot(*args[:-1], 2.0))
    released = threading.Event()
    others = threading.Barrier(2, released.set)

    class Stuck(Files):
        def shard(self, rank: int, world_size: int, epoch: int) -> Any:  # noqa: ARG002
            return self.stuck() if rank == 1 else range(40 if uneven == "drop" else 4)

        def stuck(self) -> Iterator[int]:
            yield from range(6)
            released.wait(PATIENCE)

    def load(rank: int) -> Any:
        try:
            return batches(loader_of(Stuck(), uneven=uneven))
        finally:
            if rank != 1:
                others.wait(PATIENCE)

    for rank, error in enumerate(ranks.run(load)):
        if rank != 1:
            assert isinstance(error, RankError)
            assert "rank 1 did not say within" in str(error)


def test_ranks_without_a_batch_are_named_on_all_ranks(ranks: RankThreads) -> None:
    with pytest.warns(EmptyReplicaWarning) as warned:
        got = ranks.run(lambda _: batches(loader_of(Files(6), uneven="drop")))
    assert not any(got)
    texts = {str(each.message).partition(" of ")[0] for each in warned}
    empty = range(1, ranks.world_size)
    together = "rank 1" if len(empty) == 1 else "ranks 1, 2"
    assert texts == {together, *(f"rank {rank}" for rank in empty)}


def test_a_rank_without_a_batch_has_none_to_repeat(ranks: RankThreads) -> None:
    for error in ranks.run(lambda _: batches(loader_of(Files(6)))):
        assert isinstance(error, RankError)
        assert "had no batch left of its own" in str(error)
        assert "1" in str(error)


def test_short_gives_each_rank_what_it_has(ranks: RankThreads) -> None:
    lengths = LENGTHS[: ranks.world_size]
    got = ranks.run(lambda _: batches(loader_of(Files(*lengths), uneven="short")))
    assert [len(each) for each in got] == [length // 2 for length in lengths]


def test_short_names_a_rank_without_a_batch_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.warns(EmptyReplicaWarning, match="rank 1 of 2 had no batch"):
        assert not batches(loader_of(Files(6), uneven="short"))


@pytest.mark.parametrize("uneven", ["drop", "pad"])
def test_without_torch_distributed_there_is_nobody_to_agree_with(uneven: Any) -> None:
    loader = loader_of(Files(6, 4), uneven=uneven, shard=(0, 2))
    with pytest.raises(ValueError, match=r"needs torch.distributed .* uneven='short'"):
        iter(loader)
    assert len(batches(loader_of(Files(6, 4), uneven=uneven, shard=(0, 1)))) == 5


def test_a_long_epoch_leaves_few_keys_in_the_store(ranks: RankThreads) -> None:
    before: list[int] = []

    def load(_: int) -> Any:
        loader = loader_of(Files(*[400] * ranks.world_size), uneven="drop")
        for step, _ in enumerate(loader):
            if step == 10:
                before.append(len(ranks.store.values))
        return step

    assert ranks.run(load) == [199] * ranks.world_size
    assert len(ranks.store.values) <= min(before) + ranks.world_size


class Once:
    """Fails at its third sample, and goes on."""

    def __init__(self) -> None:
        self.at = 0

    def __iter__(self) -> Once:
        return self

    def __next__(self) -> int:
        self.at += 1
        if self.at == 3:
            raise ValueError(self.at)
        if self.at > 7:
            raise StopIteration
        return self.at


class Failing(Files):
    def shard(self, rank: int, world_size: int, epoch: int) -> Any:  # noqa: ARG002
        return Once() if rank else range(8)


def test_an_error_of_a_sample_counts_as_a_step(ranks: RankThreads) -> None:
    def load(_: int) -> tuple[int, int]:
        steps, errors = iter(loader_of(Failing(), uneven="drop")), 0
        for step in count():
            try:
                next(steps)
            except ValueError:
                errors += 1
            except StopIteration:
                return step, errors
        raise AssertionError

    got = ranks.run(load)
    assert len({steps for steps, _ in got}) == 1
    assert [errors for _, errors in got] == [0] + [1] * (ranks.world_size - 1)


class Uncopied:
    """A batch of one's own, which can't be copied."""

    def __init__(self, samples: list[int]) -> None:
        self.samples = samples

    def __deepcopy__(self, memo: object) -> Uncopied:
        raise RuntimeError(memo)


@pytest.mark.parametrize("world_size", [2])
def test_a_batch_that_can_not_be_copied_does_not_come_again(ranks: RankThreads) -> None:
    def load(_: int) -> int:
        return len(list(loader_of(Files(8, 4), collate_fn=Uncopied)))

    whole, error = ranks.run(load)
    assert isinstance(error, TypeError)
    assert "choose uneven='drop'" in str(error)
    assert whole == 4 or isinstance(whole, RankError)  # which names rank 1, if it has left by then
