"""Iterable datasets of different lengths on ranks that are real processes, with DDP."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from support.ranks import run_ranks

if TYPE_CHECKING:
    from pathlib import Path

pytest.importorskip("torch")
pytestmark = pytest.mark.scale_out

LOADING = """
import warnings
from threadloader import RankError, ThreadLoader

class Rows:
    def __init__(self, lengths):
        self.lengths = lengths
    def shard(self, rank, world_size, epoch):
        files = list(enumerate(self.lengths))[rank::world_size]
        return [torch.tensor([number, row]) for number, length in files for row in range(length)]
    def __iter__(self):
        raise AssertionError("not shared out")
"""

CHECKS = """
from torch.nn.parallel import DistributedDataParallel

def trained():
    torch.set_num_threads(1)
    model = DistributedDataParallel(torch.nn.Linear(2, 1))
    told = {}
    for uneven, threads in (("drop", 0), ("drop", 2), ("pad", 0), ("pad", 2)):
        loader = ThreadLoader(
            Rows((9, 21, 4)), 2, threads=threads, shard="auto", uneven=uneven,
            transform=None if threads == 0 else torch.Tensor.float,
        )
        told[f"{uneven} {threads}"] = epochs = []
        for _ in range(2):
            epochs.append([])
            for batch in loader:
                model(batch.float()).mean().backward()  # waits for all ranks
                epochs[-1].append(batch[:, 1].tolist())
    short = ThreadLoader(Rows((9, 21, 4)), 2, threads=1, shard="auto", uneven="short")
    return told, [batch[:, 1].tolist() for batch in short]

def empty():
    told = []
    for uneven in ("drop", "pad", "short"):
        with warnings.catch_warnings(record=True) as warned:
            warnings.simplefilter("always")
            loader = ThreadLoader(Rows((6, 6)), 2, threads=1, shard="auto", uneven=uneven)
            try:
                got = len(list(loader))
            except RankError as error:
                got = str(error)
        said = [str(each.message) for each in warned if "no batch" in str(each.message)]
        told.append([got, said])
    return told

def left():
    loader = ThreadLoader(Rows((40, 60, 40)), 2, threads=1, prefetch=1 + 3 * rank, shard="auto")
    counts = []
    for most in (5, 2, 100):
        counts.append(0)
        for batch in loader:
            dist.all_reduce(batch.sum())
            counts[-1] += 1
            if counts[-1] == most:
                break
    return counts

told = []
for check in (trained, empty, left):
    told.append(check())
    dist.barrier()
tell(told)
"""
WORLD_SIZE = 3


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> list[list[Any]]:
    """What each rank tells of all checks that one start of the ranks is enough for."""
    return run_ranks(LOADING + CHECKS, WORLD_SIZE, tmp_path_factory.mktemp("ranks"))


def test_ranks_that_end_at_different_steps_train_to_the_end(told: list[list[Any]]) -> None:
    own = [[list(range(row, min(row + 2, n))) for row in range(0, n, 2)] for n in (9, 21, 4)]
    least, most = min(map(len, own)), max(map(len, own))
    for rank, ((trained, short), *_) in enumerate(told):
        assert short == own[rank]
        padded = own[rank] + [own[rank][-1]] * (most - len(own[rank]))
        for name, epochs in trained.items():
            expected = own[rank][:least] if name.startswith("drop") else padded
            assert epochs == [expected] * 2


def test_a_rank_that_yields_nothing_is_named(told: list[list[Any]]) -> None:
    for rank, (_, empty, _) in enumerate(told):
        (dropped, said), (padded, _), (short, warned) = empty
        assert dropped == 0
        assert said[0].startswith("rank 2 of 3 had no batch")
        assert padded.startswith("rank 2 of 3 had no batch left of its own")
        assert short == (0 if rank == 2 else 3)
        assert len(warned) == (rank == 2)


FIRST_ENDS = """
import time
from threadloader._ranks import waiting

waiting.STORE_SECONDS = 0.1  # then a rank asks every half second

class Slow(Rows):
    def shard(self, rank, world_size, epoch):
        return self.slow(length) if rank == slow else super().shard(rank, world_size, epoch)
    def slow(self, length):
        yield from torch.zeros(4, 2)
        time.sleep(1)
        yield from torch.zeros(length - 4, 2)

loader = ThreadLoader(Slow((4, 4)), 2, threads=1, shard="auto", uneven=uneven)
dist.barrier()
tell(len(list(loader)))
"""


@pytest.mark.parametrize(("uneven", "slow", "length"), [("pad", 0, 4), ("drop", 1, 6)])
def test_the_first_rank_stays_until_others_know_of_the_end(
    uneven: str, slow: int, length: int, tmp_path: Path
) -> None:
    script = f"{LOADING}\n{uneven=}\n{slow=}\n{length=}\n{FIRST_ENDS}"
    assert run_ranks(script, 2, tmp_path) == [2, 2]
