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

TRAINING = """
from torch.nn.parallel import DistributedDataParallel

torch.set_num_threads(1)
model = DistributedDataParallel(torch.nn.Linear(2, 1))
told = {}
for uneven in ("drop", "pad"):
    for threads in (0, 2):
        loader = ThreadLoader(
            Rows((9, 21, 4, 14)[:world_size]), 2, threads=threads, shard="auto", uneven=uneven,
            transform=None if threads == 0 else torch.Tensor.float,
        )
        epochs = []
        for _ in range(2):
            rows = []
            for batch in loader:
                model(batch.float()).mean().backward()  # waits for all ranks
                rows.append(batch[:, 1].tolist())
            epochs.append(rows)
        told[f"{uneven} {threads}"] = epochs
got = [batch[:, 1].tolist() for batch in ThreadLoader(
    Rows((9, 21, 4, 14)[:world_size]), 2, threads=1, shard="auto", uneven="short"
)]
tell([told, got])
"""


@pytest.mark.parametrize("world_size", [2, 4])
def test_ranks_that_end_at_different_steps_train_to_the_end(
    world_size: int, tmp_path: Path
) -> None:
    lengths = (9, 21, 4, 14)[:world_size]
    own = [[list(range(row, min(row + 2, n))) for row in range(0, n, 2)] for n in lengths]
    least, most = min(map(len, own)), max(map(len, own))
    for rank, (told, short) in enumerate(run_ranks(LOADING + TRAINING, world_size, tmp_path)):
        assert short == own[rank]
        padded = own[rank] + [own[rank][-1]] * (most - len(own[rank]))
        for name, epochs in told.items():
            expected = own[rank][:least] if name.startswith("drop") else padded
            assert epochs == [expected] * 2


KILLED = """
import signal
from threadloader._session import agreement

dist.barrier()
agreement.SECONDS = 4.0
loader = ThreadLoader(Rows((40, 40, 40)), 2, threads=1, prefetch=1, shard="auto", uneven="drop")
try:
    for step, batch in enumerate(loader):
        if rank == 1 and step == 3:
            tell(None)
            os.kill(os.getpid(), signal.SIGKILL)
    tell("no error")
except RankError as error:
    tell(str(error))
store = dist.distributed_c10d._get_default_store()
if rank == 0:
    store.wait(["rank 2 has told"])  # the store ends with this process
else:
    store.set("rank 2 has told", "")
os._exit(0)  # torch would wait for the rank that is gone
"""


def test_a_rank_that_is_killed_is_named(tmp_path: Path) -> None:
    errors = run_ranks(LOADING + KILLED, 3, tmp_path, killed=(1,))
    for rank in (0, 2):
        assert "rank 1 did not say within 4 s" in errors[rank]


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


@pytest.mark.parametrize(
    ("uneven", "slow", "length"), [("drop", 0, 4), ("pad", 0, 4), ("drop", 1, 6)]
)
def test_the_first_rank_stays_until_others_know_of_the_end(
    uneven: str, slow: int, length: int, tmp_path: Path
) -> None:
    script = f"{LOADING}\n{uneven=}\n{slow=}\n{length=}\n{FIRST_ENDS}"
    assert run_ranks(script, 2, tmp_path) == [2, 2]


EMPTY = """
told = []
for uneven in ("drop", "pad", "short"):
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        try:
            got = len(list(ThreadLoader(Rows((6,)), 2, threads=1, shard="auto", uneven=uneven)))
        except RankError as error:
            got = str(error)
    told.append([got, [str(each.message) for each in warned if "no batch" in str(each.message)]])
tell(told)
"""


def test_a_rank_that_yields_nothing_is_named(tmp_path: Path) -> None:
    told = run_ranks(LOADING + EMPTY, 2, tmp_path)
    for rank, ((dropped, said), (padded, _), (short, warned)) in enumerate(told):
        assert dropped == 0
        assert said[0].startswith("rank 1 of 2 had no batch")
        assert padded.startswith("rank 1 of 2 had no batch left of its own")
        assert short == (0 if rank else 3)
        assert len(warned) == rank


LEFT = """
loader = ThreadLoader(Rows((40, 60)), 2, threads=1, prefetch=1 + 3 * rank, shard="auto")
counts = []
for most in (5, 2, 100):
    count = 0
    for batch in loader:
        dist.all_reduce(batch.sum())
        count += 1
        if count == most:
            break
    counts.append(count)
dist.barrier()
tell(counts)
"""


def test_ranks_that_leave_an_epoch_at_the_same_step_go_on(tmp_path: Path) -> None:
    told: Any = run_ranks(LOADING + LEFT, 2, tmp_path)
    assert told == [[5, 2, 30]] * 2
