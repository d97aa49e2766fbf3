"""A lock of a path: one has it, the others wait, and it ends with its process."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import warnings
from typing import TYPE_CHECKING, Any

import pytest
from support.patience import PATIENCE

from threadloader._threads.waiting import Stop
from threadloader.datasets import _file_lock
from threadloader.datasets._file_lock import FileLock, lock_file
from threadloader.errors import ClosedError

if TYPE_CHECKING:
    from collections.abc import Callable
    from concurrent.futures import Future
    from pathlib import Path


def locked(path: Path) -> FileLock:
    lock = lock_file(path)
    assert lock is not None
    return lock


def test_a_lock_is_had_by_one_and_leaves_no_file(tmp_path: Path) -> None:
    path = tmp_path / "new" / "a.lock"
    first = locked(path)
    assert lock_file(path, waits=False) is None
    first.release()
    first.release()
    assert not list(path.parent.iterdir())
    locked(path).release()


def test_a_lock_that_is_dropped_is_given_back_also_by_the_collector(tmp_path: Path) -> None:
    cycle: list[object] = [locked(tmp_path / "a.lock")]
    cycle.append(cycle)
    del cycle
    gc.collect()
    assert not list(tmp_path.iterdir())


@pytest.mark.parallel
def test_of_many_threads_one_at_a_time_has_the_lock(
    tmp_path: Path, spawn: Callable[..., Future[Any]]
) -> None:
    path, inside, most = tmp_path / "a.lock", 0, 0

    def work() -> None:
        nonlocal inside, most
        for _ in range(20):
            lock = locked(path)
            inside += 1
            most = max(most, inside)
            inside -= 1
            lock.release()

    for future in [spawn(work) for _ in range(8)]:
        future.result(PATIENCE)
    assert most == 1
    assert not list(tmp_path.iterdir())


def test_a_wait_for_a_lock_can_be_stopped(
    tmp_path: Path, spawn: Callable[..., Future[Any]]
) -> None:
    path, stop = tmp_path / "a.lock", Stop()
    first = locked(path)
    waiting = spawn(lock_file, path, stop)
    stop.set()
    with pytest.raises(ClosedError):
        waiting.result(PATIENCE / 2)
    first.release()
    locked(path).release()  # what came too late was given back


def test_a_holder_that_does_not_go_on_is_waited_for_no_longer_than_a_minute(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_file_lock, "PATIENCE_S", 0.01)
    first = locked(tmp_path / "a.lock")
    assert lock_file(tmp_path / "a.lock") is None
    first.release()


def test_a_folder_that_can_not_be_written_has_no_locks(tmp_path: Path) -> None:
    place = tmp_path / "file"
    place.write_text("no folder")
    assert lock_file(place / "a.lock") is None


def test_a_file_system_without_locks_has_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(95, "Operation not supported")

    monkeypatch.setattr(_file_lock, "_lock_now", refuse)
    assert lock_file(tmp_path / "a.lock") is None


HOLD = """
import sys
from pathlib import Path
from threadloader.datasets._file_lock import lock_file

lock = lock_file(Path(sys.argv[1]))
print("locked", flush=True)
sys.stdin.read()
"""


def test_a_killed_process_leaves_its_lock_to_who_waits(
    tmp_path: Path, spawn: Callable[..., Future[Any]]
) -> None:
    path = tmp_path / "a.lock"
    command = [sys.executable, "-c", HOLD, str(path)]
    child = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    with child:
        assert child.stdout is not None
        assert child.stdout.readline() == b"locked\n"
        assert lock_file(path, waits=False) is None
        waiting = spawn(lock_file, path)
        child.kill()
        lock = waiting.result(PATIENCE)
    assert lock is not None
    lock.release()
    assert not list(tmp_path.iterdir())


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork")
def test_a_forked_child_does_not_keep_a_lock_that_its_parent_released(tmp_path: Path) -> None:
    lock = locked(tmp_path / "a.lock")
    read, write = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of fork beside threads, 3.12
        child = os.fork()
    if not child:
        os.close(write)
        os.read(read, 1)  # until the parent has closed its end
        os._exit(0)
    lock.release()
    second = lock_file(tmp_path / "a.lock", waits=False)
    os.close(write)
    os.close(read)
    os.waitpid(child, 0)
    assert second is not None
    second.release()
