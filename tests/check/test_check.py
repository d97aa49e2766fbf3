"""`check`: what it finds in unsafe datasets, and that it finds nothing in safe ones."""

from __future__ import annotations

import re
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from support.checked_datasets import COPIED, SAFE, UNSAFE, Dataset, SeekAndRead, others_run
from support.child import run_child
from support.patience import PATIENCE, Spawn

from threadloader.testing import assert_thread_safe

FILE = sys.modules[SeekAndRead.__module__].__file__ or ""


@pytest.mark.parametrize(
    ("kind", "message", "make"),
    [
        pytest.param(kind, message, make, id=make.__name__)
        for kind, message, makes in UNSAFE
        for make in makes
    ],
)
def test_an_unsafe_dataset_is_found_with_its_cause_and_a_line_of_it(
    kind: str, message: str, make: Callable[[Path], Any], tmp_path: Path
) -> None:
    dataset = make(tmp_path)
    try:
        with pytest.raises(AssertionError, match=f"^{make.__name__} is not safe") as raised:
            assert_thread_safe(dataset, dataset_copy="shared" if make in COPIED else "auto")
    finally:
        if hasattr(dataset, "connection"):
            dataset.connection.close()  # in its own thread
    found = re.findall(r"^(.+):\d+: ([a-z-]+): (.+)\n    [A-Z]", str(raised.value), re.MULTILINE)
    assert [(file, its) for file, its, _ in found] == [(FILE, kind)]
    assert re.match(".*".join(map(re.escape, message.split("..."))), found[0][2])


@pytest.mark.filterwarnings("ignore::ResourceWarning")  # no __del__ of a copy closes its file
@pytest.mark.parametrize("make", SAFE, ids=lambda make: make.__name__)
def test_nothing_is_found_in_a_safe_dataset(make: Callable[[Path], Any], tmp_path: Path) -> None:
    assert_thread_safe(make(tmp_path))


def test_an_attribute_set_on_a_trained_model_is_found() -> None:
    torch = pytest.importorskip("torch")

    class Encoded(Dataset):
        def __init__(self) -> None:
            self.model = torch.nn.Linear(2, 2)

        def __getitem__(self, index: int) -> int:
            self.model.last = index
            others_run()
            return int(self.model.last)

    with pytest.raises(AssertionError, match=r"shared-attribute: dataset\.model\.last is shared"):
        assert_thread_safe(Encoded())


def test_threads_that_wait_for_each_other_are_found(
    monkeypatch: pytest.MonkeyPatch, spawn: Spawn
) -> None:
    # It only bounds the wait.
    monkeypatch.setattr("threadloader._check.loading.HANG_SECONDS", 0.5)
    locks = [threading.Lock(), threading.Lock()]

    class Transfers(Dataset):
        def __getitem__(self, index: int) -> int:
            first, second = locks[:: 1 if index % 2 else -1]
            with first:
                others_run()
                with second:
                    return index

    with pytest.raises(AssertionError, match="hang: threads that load at once do not end"):
        spawn(assert_thread_safe, Transfers()).result(PATIENCE)
    while any(thread.name.startswith("tlcheck") for thread in threading.enumerate()):
        for lock in locks:
            with suppress(RuntimeError):  # it is free
                lock.release()  # so that threads go on, and end
        time.sleep(0.01)


@pytest.mark.skipif(sys.platform == "win32", reason="sends a signal to a thread")
def test_an_interrupt_waits_for_no_sample_that_hangs() -> None:
    script = """if True:
        import signal, threading
        from threadloader.testing import assert_thread_safe

        class Hangs:
            def __init__(self, worker):
                self.worker = worker

            def __len__(self):
                return 4

            def __getitem__(self, index):
                if threading.current_thread().name == self.worker:
                    # CPython loses the wake-up of a signal that comes just before the lock's.
                    while not taken.wait(0.1):
                        signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)
                    threading.Event().wait()
                return index

        def interrupt(*_):
            if not taken.is_set():
                taken.set()
                raise KeyboardInterrupt

        signal.signal(signal.SIGINT, interrupt)
        for worker in ("tlcheck-worker-0", "tlcheck-worker-1"):
            taken = threading.Event()
            try:
                assert_thread_safe(Hangs(worker))
            except KeyboardInterrupt:
                print("interrupted")
    """
    assert run_child(script)[:2] == (0, "interrupted\ninterrupted")


def test_a_sample_that_ends_its_thread_is_no_hang(spawn: Spawn) -> None:
    class Exits(Dataset):
        def __getitem__(self, index: int) -> int:
            if threading.current_thread().name == "tlcheck-worker-1":
                raise SystemExit("no more")
            return index

    with pytest.raises(SystemExit, match="no more"):
        spawn(assert_thread_safe, Exits()).result(PATIENCE)


def test_the_output_is_as_before() -> None:
    class Speaks(Dataset):
        def __getitem__(self, index: int) -> int:
            sys.stdout = StringIO()
            return index

    before = sys.stdout
    with pytest.raises(AssertionError, match="the standard output"):
        assert_thread_safe(Speaks())
    assert sys.stdout is before


@pytest.mark.parametrize(
    ("dataset", "message"),
    [([], "no samples"), ({}, "no samples"), ([1, 2, 3], "IndexError: list index")],
    ids=["empty list", "empty dict", "no such sample"],
)
def test_what_has_no_sample_can_not_be_checked(dataset: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        assert_thread_safe(dataset, indices=[7] if dataset else None)
