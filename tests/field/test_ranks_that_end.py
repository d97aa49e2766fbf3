"""A rank that ends, or does not come, before the ranks have agreed: the others are told at once."""

from __future__ import annotations

import re
from pathlib import Path
from textwrap import dedent

import pytest
from support.ranks import run_ranks

pytest.importorskip("torch")

LOADING = """
import signal, time, warnings
from threadloader import RankError, ThreadLoader
from threadloader._loader import agreement

agreement.TELLING_SECONDS = 0.1
agreement.SECONDS = 200.0  # beyond the patience of this test
store = dist.distributed_c10d._get_default_store()

def error(**options):
    try:
        return len(list(ThreadLoader(range(8), 2, shard="auto", **{"seed": 1} | options)))
    except (RankError, KeyboardInterrupt) as error:
        return f"{type(error).__name__}: {''.join(error.args)}"

said = []
def show(message, *_):
    said.append(message.args[0])
    store.set("said", "")
warnings.showwarning = show
"""


def test_ranks_are_told_when_the_one_with_the_store_is_killed(tmp_path: Path) -> None:
    script = """
    if rank == 0:
        tell(None)
        store.wait(["said"])  # now all others wait for this rank, and one says so
        os.kill(os.getpid(), signal.SIGKILL)
    tell([error(), said])
    os._exit(0)  # torch would wait for the rank that is gone
    """
    _, *others = run_ranks(LOADING + dedent(script), 3, tmp_path, killed=(0,))
    for told, _ in others:
        assert told.startswith("RankError: ranks can't agree any more, as their store does not")
    # Who comes first says who is missing: beside rank 0 perhaps one that is late.
    texts = [text for _, said in others for text in said]
    assert texts
    for text in texts:
        assert re.fullmatch(r"ranks? 0(, [12])? began no epoch .* wait for up to 200 s", text)


def test_an_interrupt_ends_the_waiting_and_is_told_to_the_others(tmp_path: Path) -> None:
    script = """
    if rank == 0:
        store.set("pid", str(os.getpid()))
        told = error()
        store.set("ended", "")
    else:
        store.wait(["said"])
        os.kill(int(store.get("pid")), signal.SIGINT)
        store.wait(["ended"])
        told = error()
    tell([told, said])
    """
    (first, said), (second, _) = run_ranks(LOADING + dedent(script), 2, tmp_path)
    assert said == ["rank 1 began no epoch of this loader yet, and others wait for up to 200 s"]
    assert first == "KeyboardInterrupt: "
    assert second.startswith("RankError: rank 0 left while the ranks agreed")


def test_all_ranks_read_a_verdict_though_the_first_ends_at_once(tmp_path: Path) -> None:
    script = """
    get = dist.distributed_c10d.PrefixStore.get
    def late(self, key):
        if rank == 2 and "verdict" in key:
            time.sleep(1)  # others have read it long since
        return get(self, key)
    dist.distributed_c10d.PrefixStore.get = late
    tell(error(seed=1 + (rank == 1)))
    os._exit(0)
    """
    told = run_ranks(LOADING + dedent(script), 3, tmp_path)
    text = "RankError: rank 1 does not load the same: seed is 2 there, and 1 on rank 0"
    assert told == [text] * 3


def test_ranks_are_told_of_one_that_exits_while_a_thread_of_it_has_the_store(
    tmp_path: Path,
) -> None:
    script = f"""
    import itertools, threading
    from threadloader._order import votes
    gone = r"{tmp_path / "gone"}"
    if rank == 0:
        os.mkfifo(gone)
    dist.barrier()
    class Endless(torch.utils.data.IterableDataset):
        def __iter__(self):
            return itertools.count()
        def shard(self, rank, world_size, epoch):
            return self
    batches = iter(ThreadLoader(Endless(), 2, shard="auto", seed=1, threads=0))
    next(batches)
    if rank == 1:
        writing = os.open(gone, os.O_WRONLY)  # until the end of the process
        waiting, comes = threading.Event(), votes.comes
        votes.comes = lambda *args: waiting.set() or comes(*args)
        threading.Thread(target=next, args=(batches,), daemon=True).start()
        waiting.wait()
        time.sleep(0.5)  # by now it waits in the store
        batches.close()  # which tells the others in a thread
        tell(None)
        sys.exit()
    open(gone).read()  # until the other has ended
    try:
        next(batches)
    except RankError as error:
        tell(str(error))
    os._exit(0)  # torch would wait for the rank that is gone
    """
    # The last of all exit handlers: torch aborts a process whose thread is in its store.
    ends = "import atexit, os\natexit.register(os._exit, 0)\n"
    told, _ = run_ranks(ends + LOADING + dedent(script), 2, tmp_path)
    assert told.startswith("rank 1 left the epoch")
