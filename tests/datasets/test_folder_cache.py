"""A folder of files: whole ones only, each made by one, and those used least recently go first."""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path
from threading import Barrier
from typing import Any

import pytest
from support.patience import PATIENCE, Spawn

from threadloader._threads.waiting import Stop, stopped_by
from threadloader.datasets import _folder_cache
from threadloader.datasets._folder_cache import FolderCache
from threadloader.errors import ClosedError

SIZE = 1000  # bytes


def content_of(number: int) -> bytes:
    return number.to_bytes(4, "big") * (SIZE // 4)


class Source:
    """Gives the contents of files, and counts how often each was made."""

    def __init__(self, folder: Path, files: float = 100) -> None:
        self.cache = FolderCache(folder, int(files * SIZE))
        self.made: Counter[int] = Counter()

    def read(self, number: int, after: Callable[[], Any] = lambda: None) -> bytes:
        found = self.cache.read(str(number))
        if found is not None:
            return found
        with self.cache.making(str(number)):
            found = self.cache.read(str(number))
            if found is None:
                after()
                self.made[number] += 1
                found = content_of(number)
                self.cache.write(str(number), found)
        return found


def used(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*.*"))


def test_who_waits_hears_that_it_is_to_stop_and_makes_it_where_another_one_failed(
    tmp_path: Path, spawn: Spawn
) -> None:
    source, stop = Source(tmp_path), Stop()
    begun, go = Barrier(2), Barrier(2)

    def fail() -> None:
        begun.wait(PATIENCE)
        go.wait(PATIENCE)
        raise ConnectionResetError

    def read() -> bytes:
        with stopped_by(stop):
            return source.read(7)

    first = spawn(partial(source.read, 7, after=fail))
    begun.wait(PATIENCE)
    stopped, other = spawn(read), spawn(source.read, 7)
    stop.set()
    with pytest.raises(ClosedError):
        stopped.result(PATIENCE / 2)  # the first one still makes it
    assert not other.done()
    go.wait(PATIENCE)
    assert isinstance(first.exception(PATIENCE), ConnectionResetError)
    assert other.result(PATIENCE) == content_of(7)
    assert source.made == {7: 1}


@pytest.mark.parametrize("why", ["the holder does not go on", "there are no locks"])
def test_who_can_not_have_the_lock_goes_on_without(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, why: str
) -> None:
    def refuse(_: int) -> bool:
        raise OSError(95, "Operation not supported")

    first, second = Source(tmp_path), Source(tmp_path)
    if why == "there are no locks":
        monkeypatch.setattr(_folder_cache, "_lock_now", refuse)
    else:
        monkeypatch.setattr(_folder_cache, "PATIENCE_S", 0.01)
    assert first.read(1, after=lambda: second.read(1)) == content_of(1)
    assert first.made == second.made == {1: 1}


def test_the_bound_holds_after_every_file_also_of_many_threads(
    tmp_path: Path, spawn: Spawn
) -> None:
    source, threads, rounds = Source(tmp_path, files=20), 8, 8
    start, end = Barrier(threads), Barrier(threads, lambda: sizes.append(used(tmp_path)))
    sizes: list[int] = []

    def read(thread: int) -> None:
        for turn in range(rounds):
            start.wait(PATIENCE)
            source.read(turn * threads + thread)
            end.wait(PATIENCE)

    for number in range(1000, 1050):
        assert source.read(number) == content_of(number)
        assert used(tmp_path) <= 20 * SIZE
    assert used(tmp_path) >= 17 * SIZE  # it is made use of
    for future in [spawn(read, thread) for thread in range(threads)]:
        future.result(PATIENCE)
    assert len(sizes) == rounds
    assert max(sizes) <= (20 + threads) * SIZE


def test_files_used_least_recently_make_room(tmp_path: Path) -> None:
    source = Source(tmp_path, files=10)
    for number in range(10):
        source.read(number)
        for path in tmp_path.rglob("*.kept"):  # an hour goes by
            status = path.stat()
            os.utime(path, (status.st_atime - 3600, status.st_mtime - 3600))
    for number in (0, 10, 0, *range(4, 10)):  # the first is used again
        source.read(number)
    assert set(source.made.values()) == {1}
    source.read(1)
    assert source.made[1] == 2


def test_what_processes_that_died_left_is_removed_and_foreign_files_stay(tmp_path: Path) -> None:
    foreign, folder = tmp_path / "thesis.tex", tmp_path / "0a"
    folder.mkdir()
    foreign.write_bytes(bytes(50 * SIZE))
    old, new = folder / "old.partial", folder / "new.partial"
    old.write_bytes(b"x")
    new.write_bytes(b"x")
    os.utime(old, (0, time.time() - 7200))
    source = Source(tmp_path, files=5)
    for number in range(20):
        source.read(number)
    assert (old.exists(), new.exists()) == (False, True)  # somebody may be writing the new one
    assert foreign.exists()
