"""Ranks that read iterable datasets, and end at different steps: each goes as many as the others.

The ranks are threads here, with a barrier for each step as DDP has one: whoever goes a step alone
would wait for ever.  `test_streams_in_processes` has real ones.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any

import numpy as np
import pytest
from support.patience import PATIENCE, Spawn
from support.pictures import told_by
from support.rank_threads import RankThreads

from threadloader import (
    ClosedError,
    EmptyReplicaWarning,
    RankError,
    ThreadLoader,
    _torch,
)
from threadloader._engine.feed import open_feed
from threadloader._loader import agreement, begin


class Files:
    """Samples in files of different lengths, which are shared out."""

    def __init__(self, *lengths: int) -> None:
        self.files = [range(1000 * n, 1000 * n + length) for n, length in enumerate(lengths)]

    def shard(self, rank: int, world_size: int, epoch: int) -> Files:  # noqa: ARG002
        share = Files()
        share.files = self.files[rank::world_size]
        return share

    def __iter__(self) -> Iterator[int]:
        for file in self.files:
            yield from file


class Shares:
    """What each rank reads is made by a function of its own; of the last, for those beyond it."""

    def __init__(self, *makes: Callable[[], Any]) -> None:
        self.makes = makes

    def shard(self, rank: int, world_size: int, epoch: int) -> Any:  # noqa: ARG002
        return self.makes[min(rank, len(self.makes) - 1)]()

    def __iter__(self) -> Iterator[int]:
        raise AssertionError("not shared out")


def up_to(number: int) -> Callable[[], range]:
    return lambda: range(number)


def waits(event: threading.Event, before: int, after: int) -> Callable[[], Iterator[int]]:
    """Return what makes a share that waits for an event amid its samples."""

    def generate() -> Iterator[int]:
        yield from range(before)
        event.wait(PATIENCE)
        yield from range(after)

    return generate


def fails_at(number: int) -> Iterator[int]:
    """Yield some samples, and end with an error."""
    yield from range(number)
    raise ValueError(number)


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
def test_drop_ends_all_ranks_with_the_first_that_ends(threads: int, ranks: RankThreads) -> None:
    barrier = threading.Barrier(ranks.world_size)

    def load(_: int) -> Any:
        files = Files(*LENGTHS[: ranks.world_size])
        with loader_of(files, threads=threads, uneven="drop") as loader:
            return [batches(loader, barrier) for _ in range(2)]

    for rank, got in enumerate(ranks.run(load)):
        first = 1000 * rank
        assert got == [[[first, first + 1], [first + 2, first + 3]]] * 2


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


def test_where_a_rank_has_no_batch_no_rank_goes_a_step_and_each_is_warned(
    ranks: RankThreads,
) -> None:
    with pytest.warns(EmptyReplicaWarning) as warned:
        got = ranks.run(lambda _: batches(loader_of(Files(6), uneven="drop")))
    assert not any(got)
    texts = {str(each.message).partition(" of ")[0] for each in warned}
    told, *named = sorted(texts)
    assert told.startswith("another rank has no batch in this epoch")
    assert named == [f"rank {rank}" for rank in range(1, ranks.world_size)]


def test_a_rank_without_a_batch_has_none_to_repeat(ranks: RankThreads) -> None:
    gone = []

    def load(_: int) -> None:
        gone.extend(loader_of(Files(6)))  # no rank goes a step

    for error in ranks.run(load):
        assert not gone
        assert isinstance(error, RankError)
        assert f"{ranks.world_size - 1} of {ranks.world_size} ranks had no batch" in str(error)


def test_short_names_a_rank_without_a_batch_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.warns(EmptyReplicaWarning, match="rank 1 of 2 had no batch"):
        assert not batches(loader_of(Files(6), uneven="short"))


def test_ranks_that_leave_an_epoch_at_the_same_step_go_on(ranks: RankThreads) -> None:
    def load(rank: int) -> list[int]:
        files = Files(*[40] * ranks.world_size)
        loader = loader_of(files, uneven="drop", prefetch=1 + 3 * rank)
        return [sum(1 for _ in islice(loader, most)) for most in (5, 2, 100)]

    assert ranks.run(load) == [[5, 2, 20]] * ranks.world_size


@pytest.mark.parametrize("uneven", ["drop", "pad"])
def test_without_torch_distributed_there_is_nobody_to_agree_with(uneven: Any) -> None:
    loader = loader_of(Files(6, 4), uneven=uneven, shard=(0, 2))
    with pytest.raises(ValueError, match=r"needs torch.distributed .* uneven='short'"):
        iter(loader)
    assert len(batches(loader_of(Files(6, 4), uneven=uneven, shard=(0, 1)))) == 5


@pytest.mark.parametrize("world_size", [2])
@pytest.mark.parametrize("uneven", ["drop", "pad"])
def test_waiting_for_other_ranks_is_counted_and_told(uneven: Any, ranks: RankThreads) -> None:
    released = threading.Event()
    padded = uneven == "pad"
    late = Shares(up_to(4 if padded else 8), waits(released, 4, 4 if padded else 0))

    def load(rank: int) -> Any:
        loader = loader_of(late, uneven=uneven)
        iterator = iter(loader)
        for _ in range(2):
            next(iterator)
        if not rank:
            threading.Timer(0.1, released.set).start()
        steps = 2 + sum(1 for _ in iterator)
        return steps, loader.statistics().epoch.rank_wait_seconds

    (steps, waited), other = ranks.run(load)
    assert steps == other[0] == (4 if padded else 2)
    assert waited > 0


@pytest.mark.parametrize(("uneven", "more"), [("pad", 0), ("drop", 0), ("drop", 4)])
def test_an_epoch_that_has_ended_leaves_few_keys_in_the_store(
    uneven: Any, more: int, ranks: RankThreads
) -> None:
    def load(_: int) -> Any:
        loader = loader_of(Files(8, *[8 + more] * (ranks.world_size - 1)), uneven=uneven)
        return [len(list(loader)) for _ in range(3)]

    assert ranks.run(load) == [[4] * 3] * ranks.world_size
    assert len([key for key in ranks.store.values if "epoch" in key]) <= 3 * 3, "of 12 steps"


def damaged(loads: int, length: int) -> Shares:
    """Return shares of ranks: of rank 1's samples only the first ones can be loaded."""

    def load(number: int) -> int:
        if number >= loads:
            raise ValueError(number)
        return number

    return Shares(up_to(8), lambda: map(load, range(length)))


def batches_and_errors(loader: Any) -> list[Any]:
    """Load all batches; what a sample's error was raised with stands in the place of its batch."""
    told = told_by(loader, lambda batch: np.asarray(batch).tolist())
    return [each.args[0] if isinstance(each, ValueError) else each for each in told]


def broken(samples: int) -> Shares:
    """Return shares of ranks: the generator of rank 1 fails, and ends with that."""
    return Shares(up_to(samples), lambda: fails_at(4), up_to(samples))


@pytest.mark.parametrize("world_size", [2])
@pytest.mark.parametrize("threads", [0, 1])
def test_where_the_last_batch_fails_an_earlier_one_comes_again(
    threads: int, ranks: RankThreads
) -> None:
    def load(_: int) -> Any:
        return batches_and_errors(loader_of(damaged(3, 4), threads=threads))

    whole, failing = ranks.run(load)
    assert whole == [[0, 1], [2, 3], [4, 5], [6, 7]]
    assert failing[0] == [0, 1]
    assert failing[2:] == [[0, 1]] * 2


@pytest.mark.parametrize("world_size", [2])
def test_an_epoch_that_repeats_its_last_batch_can_be_closed(ranks: RankThreads) -> None:
    closed = threading.Event()

    def load(rank: int) -> Any:
        steps = iter(loader_of(Files(20, 4), prefetch=1))
        got = [next(steps).tolist() for _ in range(3)]
        if not rank:
            closed.wait(PATIENCE)
            return None
        steps.close()
        closed.set()
        with pytest.raises(ClosedError):
            next(steps)
        return got

    assert ranks.run(load) == [None, [[1000, 1001], [1002, 1003], [1002, 1003]]]


@pytest.mark.parametrize("world_size", [2])
@pytest.mark.parametrize("uneven", ["drop", "pad"])
def test_an_epoch_that_does_not_come_about_on_one_rank_ends_on_all(
    uneven: Any, ranks: RankThreads, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(settings: Any, *args: Any, **options: Any) -> Any:
        if settings.dataset.fails:
            settings.dataset.fails = False
            raise OSError("no feed")
        return open_feed(settings, *args, **options)

    monkeypatch.setattr(begin, "open_feed", refused)

    def load(rank: int) -> Any:
        files: Any = Files(8, 8)
        files.fails = rank == 1
        loader = loader_of(files, uneven=uneven)
        if rank:
            with pytest.raises(OSError, match="no feed"):
                batches(loader)
        else:
            with pytest.raises(RankError, match="rank 1 left the epoch by step 0"):
                batches(loader)
        return len(batches(loader))  # they agree again

    assert ranks.run(load) == [4, 4]


@pytest.mark.parametrize("world_size", [2])
def test_ranks_with_different_numbers_of_replicas_are_refused(ranks: RankThreads) -> None:
    class Replicated(Files, _torch.IterableDataset):  # type: ignore[misc]  # Any without torch
        pass

    def load(rank: int) -> Any:
        return batches(loader_of(Replicated(8, 8, 8, 8), threads=1 + rank, uneven="short"))

    for error in ranks.run(load):
        assert isinstance(error, RankError)
        assert "replicas is 2 there, and 1 on rank 0" in str(error)


@pytest.mark.parametrize("world_size", [3])
def test_two_ranks_with_one_share_are_named_on_all_ranks(ranks: RankThreads) -> None:
    errors = ranks.run(lambda rank: batches(loader_of(Files(8), shard=(min(rank, 1), 3))))
    assert [error.args[0] for error in errors] == ["ranks 1 and 2 both load the share 1"] * 3


@pytest.mark.parametrize("world_size", [2])
@pytest.mark.parametrize("uneven", ["drop", "pad"])
def test_a_rank_that_comes_after_the_limit_finds_what_others_found(
    uneven: Any, ranks: RankThreads, monkeypatch: pytest.MonkeyPatch
) -> None:
    agree = agreement.agree  # to begin, ranks have the time that they need
    monkeypatch.setattr(agreement, "agree", lambda *given: agree(*given[:-1], PATIENCE))
    monkeypatch.setattr(agreement, "SECONDS", 1.0)
    released = threading.Event()
    # With nothing left of its own, rank 0 repeats a batch only if another has one.
    slow = Shares(up_to(8 if uneven == "drop" else 4), waits(released, 4, 4))

    def load(rank: int) -> Any:
        try:
            return list(loader_of(slow, uneven=uneven))
        finally:
            if not rank:
                released.set()

    for error in ranks.run(load):
        assert isinstance(error, RankError)
        assert "rank 1 did not say within 1 s" in str(error)


@pytest.mark.parametrize("world_size", [2])
@pytest.mark.parametrize("samples", [6, 20])
def test_a_share_that_fails_is_an_error_where_others_have_something_left(
    samples: int, ranks: RankThreads
) -> None:
    def load(rank: int) -> Any:
        loader = loader_of(broken(samples), uneven="drop")
        return batches_and_errors(loader) if rank else batches(loader)

    whole, failing = ranks.run(load)
    assert failing == [[0, 1], [2, 3], 4]
    if samples > 6:
        assert isinstance(whole, RankError)
        assert "rank 1 left the epoch by step 3" in str(whole)
    else:
        assert whole == [[0, 1], [2, 3], [4, 5]]


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
