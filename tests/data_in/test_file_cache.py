"""A folder of blocks: whole ones only, the ones used least recently go first, one fetch for all."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
import time
import warnings
from collections import Counter
from threading import Barrier
from typing import TYPE_CHECKING, Any

import pytest

from threadloader.datasets.file_cache import FileCache

if TYPE_CHECKING:
    from collections.abc import Callable
    from concurrent.futures import Future
    from pathlib import Path

BLOCK = 1000  # bytes
BOUND = 10.0  # seconds


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
        barrier.wait(BOUND)
        return [source.read(number) for number in range(20)]

    read_by_all = [spawn(read) for _ in range(16)]
    for future in read_by_all:
        assert future.result(BOUND) == [block_of(number) for number in range(20)]
    assert set(source.fetched.values()) == {1}


def test_those_who_wait_for_a_fetch_that_fails_fetch_themselves(
    tmp_path: Path, spawn: Callable[..., Future[Any]]
) -> None:
    cache = FileCache(tmp_path, 100 * BLOCK)
    begun, go = Barrier(2), Barrier(2)

    def fail() -> bytes:
        begun.wait(BOUND)
        go.wait(BOUND)
        raise ConnectionResetError

    first = spawn(cache.read, "block", BLOCK, 0, 4, fail)
    begun.wait(BOUND)
    second = spawn(cache.read, "block", BLOCK, 0, 4, lambda: block_of(7))
    go.wait(BOUND)
    with pytest.raises(ConnectionResetError):
        first.result(BOUND)
    assert second.result(BOUND) == block_of(7)[:4]


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
from threadloader.datasets.file_cache import FileCache

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
    subprocess.run([sys.executable, "-c", FULL_DISK, str(tmp_path)], check=True, timeout=60)


TWO_AT_ONCE = """
import random, sys
from threadloader.datasets.file_cache import FileCache

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


def test_two_processes_share_a_folder(tmp_path: Path) -> None:
    commands = [[sys.executable, "-c", TWO_AT_ONCE, str(tmp_path), seed] for seed in "ab"]
    processes = [subprocess.Popen(command) for command in commands]
    assert [process.wait(60) for process in processes] == [0, 0]
    assert used(tmp_path) <= 100_000 * (1 + 2 / 16)
    assert not list(tmp_path.glob("*.partial"))


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork")
def test_a_forked_child_waits_for_no_thread_of_its_parent(
    tmp_path: Path, spawn: Callable[..., Future[Any]]
) -> None:
    cache = FileCache(tmp_path, 100 * BLOCK)
    begun, go = Barrier(2), Barrier(2)

    def fetch() -> bytes:
        begun.wait(BOUND)
        go.wait(BOUND)
        return block_of(1)

    in_parent = spawn(cache.read, "block", BLOCK, 0, 4, fetch)
    begun.wait(BOUND)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of fork beside threads, 3.12
        child = os.fork()
    if not child:
        data = cache.read("block", BLOCK, 0, 4, lambda: block_of(1))
        os._exit(data != block_of(1)[:4])
    waited = spawn(os.waitpid, child, 0)
    assert waited.result(BOUND)[1] == 0
    go.wait(BOUND)
    assert in_parent.result(BOUND) == block_of(1)[:4]
