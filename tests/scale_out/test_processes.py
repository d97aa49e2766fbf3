"""``shard="auto"`` in real processes that train together with torch.distributed."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.ranks import run_ranks

pytest.importorskip("torch")
pytestmark = pytest.mark.scale_out

LOADING = """
from threadloader import RankError, ThreadLoader

class Drawing:
    def __len__(self):
        return 50
    def __getitem__(self, index):
        return index, torch.rand(())

def rows(batches):
    return [[index.tolist(), number.tolist()] for index, number in batches]
"""

AGREEING = """
torch.manual_seed(rank)  # ranks that draw differently
loader = ThreadLoader(Drawing(), 4, shuffle=True, shard="auto", threads=2, uneven="short")
epochs = [rows(loader), rows(loader)]
state = loader.state_dict()
errors = []
for options in ({"batch_size": 4 + rank}, {"shuffle": bool(rank)}, {"seed": rank}):
    try:
        iter(ThreadLoader(Drawing(), shard="auto", **options))
    except RankError as error:
        errors.append(str(error))
if rank == 0:
    from threadloader._loader import agreement
    agreement.SECONDS = 0.5
    try:
        iter(ThreadLoader(Drawing(), shard="auto", threads=1))
    except RankError as error:
        errors.append(str(error))
dist.barrier()
forked = os.fork()
if not forked:  # it is no rank, and leaves the store alone
    try:
        options = {"shuffle": True, "shard": "auto", "uneven": "short", "threads": 2}
        seeded = rows(ThreadLoader(Drawing(), 4, seed=3, **options))
        try:
            iter(ThreadLoader(Drawing(), 4, **options))
        except ValueError as error:
            tell([seeded, str(error)])
    finally:
        os._exit(0)
os.waitpid(forked, 0)
with open(os.environ["TOLD"]) as file:
    in_child = json.load(file)
dist.barrier()
tell([epochs, state, errors, in_child])
"""


def test_ranks_without_a_seed_agree_on_one(tmp_path: Path) -> None:
    ranks = run_ranks(LOADING + AGREEING, 2, tmp_path)
    (first, state, errors, in_child), (second, other_state, other_errors, in_other) = ranks
    forked = [index for seeded, _ in (in_child, in_other) for batch in seeded for index in batch[0]]
    assert sorted(forked) == list(range(50))
    assert "needs seed=" in in_child[1]
    assert state == other_state
    for one, other in zip(first, second, strict=True):
        got = sorted(index for batches in (one, other) for batch in batches for index in batch[0])
        assert got == list(range(50))
    assert first[0] != first[1]
    assert errors[:3] == other_errors
    for error, name in zip(errors, ("batch_size", "sampler", "seed", None), strict=True):
        if name is None:
            assert "rank 1 began no epoch of this loader" in error
        else:
            assert "rank 1 does not load the same" in error
            assert name in error
