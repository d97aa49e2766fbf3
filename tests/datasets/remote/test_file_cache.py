"""A folder of blocks: whole ones only, the ones used least recently go first, one fetch for all."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
import time
import warnings
from collections import Counter
from threading import Barrier, Semaphore
from typing import TYPE_CHECKING, Any, NoReturn

import pytest
from support.patience import PATIENCE

from threadloader._threads.waiting import Stop, stopped_by
from threadloader.datasets import _file_lock
from threadloader.datasets._remote.file_cache import FileCache
from threadloader.errors import ClosedError, RemoteError

if TYPE_CHECKING:
    from collections.abc import Callable
    from concurrent.futures import Future
    from pathlib import Path
    from queue import SimpleQueue

BLOCK = 1000  # bytes


def block_of(number: int) -> bytes:
    return number.to_bytes(4, "big") * (BLOCK // 4)


class Source:
    """Gives blocks, and counts how often each was wanted."""

    def __init__(self, cache: FileCache) -> None:
        self.cache = cache
        self.fetched: Counter[int] = Counter()

    def read(self, number: int, start: int = 0, stop: int = BLOCK) -> bytes:
        def fetch() -> bytes:
            self.fetched[number] += 1
            return block_of(number)

        return self.cache.read(f"block {number}", BLOCK, start, stop, fetch)


def used(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.iterdir())


def test_a_block_is_fetched_once_and_read_in_parts(tmp_path: Path) -> None:
    source = Source(FileCache(tmp_path / "new" / "folder", 100 * BLOCK))
    assert source.read(1) == block_of(1)
    assert source.read(1, 10, 17) == block_of(1)[10:17]
    assert source.read(2, 998, 1000) == block_of(2)[998:]
    assert source.fetched == {1: 1, 2: 1}


def test_another_cache_of_the_folder_finds_what_is_there(tmp_path: Path) -> None:
    Source(FileCache(tmp_path, 100 * BLOCK)).read(1)
    copy = Source(pickle.loads(pickle.dumps(FileCache(tmp_path, 100 * BLOCK))))
    assert copy.read(1) == block_of(1)
    assert not copy.fetched


@pytest.mark.parallel
def test_of_all_threads_that_want_a_block_one_fetches_it(
    tmp_path: Path, spawn: Callable[..., Future[Any]]
) -> None:
    source = Source(FileCache(tmp_path, 100 * BLOCK))
    barrier = Barrier(16)

    def read() -> list[bytes]:
        barrier.wait(PATIENCE)
        return [source.read(number) for number in range(20)]

    read_by_all = [spawn(read) for _ in range(16)]
    for future in read_by_all:
        assert future.result(PATIENCE) == [block_of(number) for number in range(20)]
    assert set(source.fetched.values()) == {1}


def test_those_who_wait_for_a_fetch_that_fails_fetch_themselves(
    tmp_path: Path, spawn: Callable[..., Future[Any]]
) -> None:
    cache = FileCache(tmp_path, 100 * BLOCK)
    begun, go = Barrier(2), Barrier(2)

    def fail() -> bytes:
        begun.wait(PATIENCE)
        go.wait(PATIENCE)
        raise ConnectionResetError

    first = spawn(cache.read, "block", BLOCK, 0, 4, fail)
    begun.wait(PATIENCE)
    second = spawn(cache.read, "block", BLOCK, 0, 4, lambda: block_of(7))
    go.wait(PATIENCE)
    with pytest.raises(ConnectionResetError):
        first.result(PATIENCE)
    assert second.result(PATIENCE) == block_of(7)[:4]


class Waiters(Stop):
    """Tells of each thread that waits until it is set."""

    def __init__(self) -> None:
        super().__init__()
        self.come = Semaphore(0)

    def add(self, waiter: SimpleQueue[None]) -> None:
        super().add(waiter)
        self.come.release()


def read_while_one_fails(
    cache: FileCache,
    error: Exception,
    fetch: Callable[[], bytes],
    spawn: Callable[..., Future[Any]],
) -> tuple[Future[Any], list[Future[Any]]]:
    """Return reads of a block: whose fetch fails, and of those who waited for it meanwhile."""
    begun, go, waiters = Barrier(2), Barrier(2), Waiters()

    def fail() -> NoReturn:
        begun.wait(PATIENCE)
        go.wait(PATIENCE)
        raise error

    def read() -> bytes:
        with stopped_by(waiters):
            return cache.read("block", BLOCK, 0, 4, fetch)

    first = spawn(cache.read, "block", BLOCK, 0, 4, fail)
    begun.wait(PATIENCE)
    others = [spawn(read) for _ in range(6)]
    for _ in others:
        assert waiters.come.acquire(timeout=PATIENCE)
    go.wait(PATIENCE)
    return first, others


@pytest.mark.parametrize("error", [ConnectionResetError(), ClosedError("stopped")], ids=repr)
def test_of_those_who_wait_for_a_fetch_that_fails_one_fetches_and_keeps_the_block(
    tmp_path: Path, spawn: Callable[..., Future[Any]], error: Exception
) -> None:
    cache, fetched = FileCache(tmp_path, 100 * BLOCK), Counter[int]()

    def fetch() -> bytes:
        fetched[7] += 1
        return block_of(7)

    first, others = read_while_one_fails(cache, error, fetch, spawn)
    assert first.exception(PATIENCE) is error
    assert {other.result(PATIENCE) for other in others} == {block_of(7)[:4]}
    assert fetched[7] == 1
    assert used(tmp_path) == BLOCK


def test_a_fetch_that_fails_for_good_fails_for_all_with_an_error_for_each(
    tmp_path: Path, spawn: Callable[..., Future[Any]]
) -> None:
    error = RemoteError("gone", "http://host/a", offset=3)
    error.__cause__ = cause = ConnectionResetError()
    error.add_note("a note of the client's")

    def fetch() -> NoReturn:
        raise AssertionError

    first, others = read_while_one_fails(FileCache(tmp_path, 100 * BLOCK), error, fetch, spawn)
    assert first.exception(PATIENCE) is error
    error.add_note("worker 1")
    found = [other.exception(PATIENCE) for other in others]
    assert len({id(one) for one in found} | {id(error)}) == len(found) + 1
    for one in found:
        assert isinstance(one, RemoteError)
        assert (str(one), one.path, one.offset) == (str(error), "http://host/a", 3)
        assert (one.__cause__, one.__notes__) == (cause, ["a note of the client's"])


@pytest.mark.parametrize("told", ["as an argument", "of the worker"])
def test_who_waits_for_anothers_fetch_hears_that_it_is_to_stop(
    tmp_path: Path, spawn: Callable[..., Future[Any]], told: str
) -> None:
    cache, stop = FileCache(tmp_path, 100 * BLOCK), Stop()
    begun, go = Barrier(2), Barrier(2)

    def fetch() -> bytes:
        begun.wait(PATIENCE)
        go.wait(PATIENCE)
        return block_of(1)

    def read() -> bytes:
        if told == "as an argument":
            return cache.read("block", BLOCK, 0, 4, fetch, stop)
        with stopped_by(stop):
            return cache.read("block", BLOCK, 0, 4, fetch)

    first = spawn(cache.read, "block", BLOCK, 0, 4, fetch)
    begun.wait(PATIENCE)
    second = spawn(read)
    stop.set()
    with pytest.raises(ClosedError):
        second.result(PATIENCE / 2)  # the other one still fetches
    go.wait(PATIENCE)
    assert first.result(PATIENCE) == block_of(1)[:4]


def interrupted(read: Callable[[], bytes], after: int) -> bool:
    """Have Ctrl-C come after so many calls of C functions in the cache's code; say if it did."""
    calls = 0

    def profile(frame: Any, event: str, _: Any) -> None:
        nonlocal calls
        if event == "c_return" and frame.f_code.co_filename.endswith("file_cache.py"):
            calls += 1
            if calls == after:
                raise KeyboardInterrupt

    before = sys.getprofile()
    sys.setprofile(profile)
    try:
        read()
    except KeyboardInterrupt:
        return True
    finally:
        sys.setprofile(before)
    return False


# A file that was opened right before is closed by its destructor, which says so.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_ctrl_c_leaves_nobody_waiting_wherever_it_comes(
    tmp_path: Path, spawn: Callable[..., Future[Any]]
) -> None:
    source = Source(FileCache(tmp_path, 1000 * BLOCK))
    number = 1
    while interrupted(lambda: source.read(number), after=number):  # noqa: B023  # called at once
        assert spawn(source.read, number).result(PATIENCE) == block_of(number)
        number += 1
    assert number > 10


def test_the_bound_holds_while_many_threads_write(
    tmp_path: Path, spawn: Callable[..., Future[Any]]
) -> None:
    source, threads, rounds = Source(FileCache(tmp_path, 20 * BLOCK)), 12, 100
    start, end = Barrier(threads), Barrier(threads, lambda: sizes.append(used(tmp_path)))
    sizes: list[int] = []

    def read(thread: int) -> None:
        for turn in range(rounds):
            start.wait(PATIENCE)
            source.read(turn * threads + thread)
            end.wait(PATIENCE)

    for future in [spawn(read, thread) for thread in range(threads)]:
        future.result(PATIENCE)
    assert len(sizes) == rounds
    assert max(sizes) <= 20 * BLOCK


def test_the_bound_holds_after_every_block(tmp_path: Path) -> None:
    source = Source(FileCache(tmp_path, 20 * BLOCK))
    for number in range(100):
        assert source.read(number) == block_of(number)
        assert used(tmp_path) <= 20 * BLOCK
    assert used(tmp_path) >= 17 * BLOCK  # it is made use of


def test_blocks_used_least_recently_make_room(tmp_path: Path) -> None:
    source = Source(FileCache(tmp_path, 10 * BLOCK))
    for number in range(10):
        source.read(number)
        for path in tmp_path.iterdir():  # an hour goes by
            status = path.stat()
            os.utime(path, (status.st_atime - 3600, status.st_mtime - 3600))
    source.read(0)  # used again
    source.read(10)
    source.read(0)
    source.read(9)
    assert source.fetched[0] == source.fetched[9] == 1
    source.read(1)
    assert source.fetched[1] == 2


def test_a_block_larger_than_the_bound_is_not_kept(tmp_path: Path) -> None:
    source = Source(FileCache(tmp_path, BLOCK // 2))
    assert source.read(1) == source.read(1) == block_of(1)
    assert source.fetched[1] == 2


def test_a_block_that_lost_its_end_is_fetched_again(tmp_path: Path) -> None:
    source = Source(FileCache(tmp_path, 100 * BLOCK))
    source.read(1)
    (path,) = tmp_path.iterdir()
    os.truncate(path, BLOCK // 2)
    assert source.read(1, 0, 10) == block_of(1)[:10]
    assert source.fetched[1] == 2
    assert path.stat().st_size == BLOCK


def test_what_a_process_that_died_left_half_written_is_removed(tmp_path: Path) -> None:
    old, new = tmp_path / "old.partial", tmp_path / "new.partial"
    old.write_bytes(b"x")
    new.write_bytes(b"x")
    os.utime(old, (0, time.time() - 7200))
    Source(FileCache(tmp_path, 100 * BLOCK)).read(1)
    assert (old.exists(), new.exists()) == (False, True)  # somebody may be writing the new one


def test_foreign_files_stay(tmp_path: Path) -> None:
    foreign = tmp_path / "thesis.tex"
    foreign.write_bytes(bytes(50 * BLOCK))
    source = Source(FileCache(tmp_path, 5 * BLOCK))
    for number in range(20):
        source.read(number)
    assert foreign.exists()


def test_a_folder_that_can_not_be_written_costs_one_warning(tmp_path: Path) -> None:
    place = tmp_path / "file"
    place.write_text("no folder")
    source = Source(FileCache(place, 100 * BLOCK))
    with pytest.warns(RuntimeWarning, match=r"can't be written.*file"):
        assert source.read(1) == block_of(1)
    assert source.read(2) == block_of(2)  # without another: it would be an error
    assert source.read(1) == block_of(1)
    assert source.fetched[1] == 2


FULL_DISK = """
import resource, sys, warnings
from pathlib import Path
from threadloader.datasets._remote.file_cache import FileCache

resource.setrlimit(resource.RLIMIT_FSIZE, (500, 500))  # a write fails in its middle
cache = FileCache(sys.argv[1], 100_000)
with warnings.catch_warnings(record=True) as warned:
    warnings.simplefilter("always")
    for _ in range(3):
        assert cache.read("block", 1000, 0, 1000, lambda: bytes(1000)) == bytes(1000)
assert [warning.category for warning in warned] == [RuntimeWarning], warned
assert not list(Path(sys.argv[1]).iterdir())
"""


@pytest.mark.skipif(sys.platform == "win32", reason="no limits on the size of files")
def test_a_full_disk_costs_one_warning_and_leaves_nothing_half_written(tmp_path: Path) -> None:
    subprocess.run([sys.executable, "-c", FULL_DISK, str(tmp_path)], check=True, timeout=PATIENCE)


AT_ONCE = """
import random, sys
from threadloader.datasets._remote.file_cache import FileCache

cache = FileCache(sys.argv[1], 100_000)
draw = random.Random(sys.argv[2])
for _ in range(600):
    number = draw.randrange(200)
    block = number.to_bytes(4, "big") * 250
    start = draw.randrange(900)
    assert cache.read(str(number), 1000, start, start + 100, lambda: block) == (
        block[start:start + 100]
    )
"""


@pytest.mark.parametrize("seeds", ["ab", "abcd"])
def test_processes_share_a_folder_and_its_bound(tmp_path: Path, seeds: str) -> None:
    commands = [[sys.executable, "-c", AT_ONCE, str(tmp_path), seed] for seed in seeds]
    processes = [subprocess.Popen(command) for command in commands]
    assert [process.wait(PATIENCE) for process in processes] == [0] * len(seeds)
    assert used(tmp_path) <= 100_000 * (1 + len(seeds) / 64)
    assert not list(tmp_path.glob("*.partial"))
    assert not list(tmp_path.glob("*.lock"))


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork")
def test_a_forked_child_waits_for_no_thread_of_its_parent(
    tmp_path: Path, spawn: Callable[..., Future[Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    # The parent waits for the child here, which waits for the parent's lock no longer than this.
    monkeypatch.setattr(_file_lock, "PATIENCE_S", 0.01)
    cache = FileCache(tmp_path, 100 * BLOCK)
    begun, go = Barrier(2), Barrier(2)

    def fetch() -> bytes:
        begun.wait(PATIENCE)
        go.wait(PATIENCE)
        return block_of(1)

    in_parent = spawn(cache.read, "block", BLOCK, 0, 4, fetch)
    begun.wait(PATIENCE)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of fork beside threads, 3.12
        child = os.fork()
    if not child:
        data = cache.read("block", BLOCK, 0, 4, lambda: block_of(1))
        os._exit(data != block_of(1)[:4])
    waited = spawn(os.waitpid, child, 0)
    assert waited.result(PATIENCE)[1] == 0
    go.wait(PATIENCE)
    assert in_parent.result(PATIENCE) == block_of(1)[:4]
