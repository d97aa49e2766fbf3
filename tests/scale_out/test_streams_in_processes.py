"""Iterable datasets of different lengths on ranks that are real processes, with DDP."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.ranks import run_ranks

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

FIRST_ENDS = """
import time
from threadloader._order import waiting

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


ENDS = """
loader = ThreadLoader(Rows((40, 40)), 2, threads=1, shard="auto", uneven="drop")
sys.kept = iterator = iter(loader)  # it is still there when the program ends
next(iterator)
error = None
if not rank:
    try:
        list(iterator)
    except RankError as told:
        error = str(told)
tell(error)
"""


def test_a_program_that_ends_within_an_epoch_is_told_to_other_ranks(tmp_path: Path) -> None:
    error, _ = run_ranks(LOADING + ENDS, 2, tmp_path)
    assert error.startswith("rank 1 left the epoch by step 1")
