"""`check` finds forty unsafe datasets and says what is wrong, and nothing in forty safe ones."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
from concurrent.futures import Future
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest
from support.patience import PATIENCE
from support.safe_datasets import SAFE
from support.unsafe_datasets import (
    COPIED,
    ROWS,
    SEEDED,
    UNSAFE,
    Cursor,
    Dataset,
    GlobalStack,
    SeekAndRead,
)

from threadloader._check import limit
from threadloader._check.checking import UncheckableError, check
from threadloader._check.findings import ADVICE
from threadloader._tuning.tuner import gil_is_enabled
from threadloader.testing import assert_thread_safe

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from support.patience import Spawn

FILE = sys.modules[Cursor.__module__].__file__


def test_there_are_ten_kinds_and_forty_that_are_safe() -> None:
    assert len(UNSAFE) == 10
    assert len(set(SAFE)) >= 40
    assert {kind for kinds, _ in UNSAFE.values() for kind in kinds} <= set(ADVICE)


@pytest.mark.parametrize(
    ("kinds", "make"),
    [
        pytest.param(kinds, make, id=f"{name}, {make.__name__}")
        for name, (kinds, makes) in UNSAFE.items()
        for make in makes
    ],
)
def test_an_unsafe_dataset_is_found_and_its_line_is_named(
    kinds: set[str], make: Callable[[Path], Any], tmp_path: Path
) -> None:
    dataset = make(tmp_path)
    try:
        report = check(dataset, dataset_copy="shared" if make in COPIED else "auto")
    finally:
        if hasattr(dataset, "connection"):
            dataset.connection.close()  # in its own thread
    found = [finding for finding in report.findings if finding.kind in kinds]
    assert found, report
    assert all(finding.advice for finding in found)
    assert [finding.line.file for finding in found if finding.line] == [FILE] * len(found)


@pytest.mark.parametrize("make", [*SAFE, *SEEDED, *COPIED], ids=lambda make: make.__name__)
def test_nothing_is_found_in_a_safe_dataset(make: Callable[[Path], Any], tmp_path: Path) -> None:
    report = check(make(tmp_path))
    assert [str(finding) for finding in report.findings] == []
    assert report.loads > 0


def line_of(text: str) -> int:
    with open(FILE or "", encoding="utf-8") as file:  # noqa: PTH123
        return next(number for number, line in enumerate(file, 1) if text in line)


def test_a_finding_names_the_handle_the_line_that_moved_it_and_the_index(tmp_path: Path) -> None:
    (finding,) = check(SeekAndRead(tmp_path), dataset_copy="shared").findings
    assert finding.line is not None
    assert finding.line.line == line_of("self.file.seek(index * WIDTH)")
    assert finding.message.startswith("dataset.file is shared by all workers: index 0 came out")
    assert "PerThread(partial(open, path))" in finding.advice


def test_what_only_two_threads_that_are_both_held_show_is_found(tmp_path: Path) -> None:
    (finding,) = check(GlobalStack(tmp_path)).findings
    assert "unsafe_datasets.stack is shared" in finding.message


def test_what_samples_change_is_put_back(tmp_path: Path) -> None:
    class Noting(Dataset):
        def __init__(self) -> None:
            self.cursor = Cursor()
            self.noted: list[int] = []

        def __getitem__(self, index: int) -> int:
            self.noted.append(index)
            return self.cursor.at(index)

    dataset = Noting()
    assert check(dataset, dataset_copy="shared").findings
    assert dataset.cursor.position == 0
    assert dataset.noted == []
    del tmp_path


def test_what_the_copies_of_workers_isolate_is_unsafe_with_one_object_for_all() -> None:
    class Current(Dataset):
        current = -1

        def __getitem__(self, index: int) -> int:
            self.current = index
            return self.current

    assert not check(Current()).findings
    (finding,) = check(Current(), dataset_copy="shared").findings
    assert finding.kind == "shared-attribute"
    assert "dataset.current" in finding.message


def test_what_is_shared_is_safe_with_copies(tmp_path: Path) -> None:
    class Reading(Dataset):
        def __init__(self) -> None:
            self.cursor = Cursor()

        def __getitem__(self, index: int) -> int:
            return self.cursor.at(index)

    assert check(Reading(), dataset_copy="shared").findings
    assert not check(Reading()).findings
    del tmp_path


def test_a_sample_that_depends_on_those_before_is_found() -> None:
    class Counting(Dataset):
        loaded = 0

        def __getitem__(self, index: int) -> int:
            self.loaded += 1
            return self.loaded

    (finding,) = check(Counting()).findings
    assert finding.kind == "own-attribute"
    assert "dataset.loaded" in finding.message


def test_replicas_of_a_stream_that_share_a_helper_are_found() -> None:
    class Source:
        def __init__(self) -> None:
            self.row = 0

        def __deepcopy__(self, _: Any) -> Source:
            return self

        def next_row(self) -> int:
            self.row += 1
            return self.row

    class Rows:
        def __init__(self) -> None:
            self.source = Source()

        def __iter__(self) -> Iterator[int]:
            for _ in range(5):
                yield self.source.next_row()

    (finding, *_) = check(Rows()).findings
    assert finding.kind == "shared-attribute"
    assert "source" in finding.message


def held(lock: threading.Lock, index: int) -> int:
    with lock:
        return index


def test_a_thread_that_waits_for_a_lock_hangs_nothing(
    spawn: Spawn,
) -> None:
    class Nested(Dataset):
        """Holds one lock while it loads; nobody needs another."""

        def __init__(self) -> None:
            self.lock = threading.Lock()
            self.hidden = [threading.local(), partial(held, threading.Lock())]

        def __getitem__(self, index: int) -> int:
            with self.lock:
                return int(self.hidden[1](index))

    report = spawn(check, Nested()).result(PATIENCE)
    assert not report.findings


def test_locks_that_are_taken_in_two_orders_are_found_without_a_hang(spawn: Spawn) -> None:
    class Transfers(Dataset):
        def __init__(self) -> None:
            self.one, self.other = threading.Lock(), threading.RLock()

        def __getitem__(self, index: int) -> int:
            if index % 2:
                with self.one, self.other:
                    return index
            with self.other, self.one:
                return index

    (finding,) = spawn(check, Transfers()).result(PATIENCE).findings
    assert finding.kind == "hang"
    assert {"dataset.one", "dataset.other"} <= set(finding.message.replace(",", "").split())
    assert finding.line is not None
    assert finding.line.file == __file__


def test_a_sample_that_ends_its_thread_is_no_hang(spawn: Spawn) -> None:
    class Exits(Dataset):
        def __getitem__(self, index: int) -> int:
            if threading.current_thread().name == "tlcheck-worker-3":
                raise SystemExit("no more")
            return index

    with pytest.raises(SystemExit, match="no more"):
        spawn(partial(check, Exits(), threads=4)).result(PATIENCE)


@pytest.mark.skipif(not hasattr(signal, "pthread_kill"), reason="sends a signal to a thread")
@pytest.mark.parametrize("worker", [0, 1])
def test_an_interrupt_waits_for_no_sample_that_hangs(worker: int) -> None:
    script = f"""if True:
        import signal, threading
        from threadloader._check.checking import check

        taken = threading.Event()

        def interrupt(*_):
            if not taken.is_set():
                taken.set()
                raise KeyboardInterrupt

        class Hangs:
            def __len__(self):
                return 4

            def __getitem__(self, index):
                if threading.current_thread().name == "tlcheck-worker-{worker}":
                    # CPython loses the wake-up of a signal that comes just before the lock's.
                    while not taken.wait(0.1):
                        signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)
                    threading.Event().wait()
                return index

        signal.signal(signal.SIGINT, interrupt)
        try:
            check(Hangs())
        except KeyboardInterrupt:
            print("interrupted")
    """
    ran = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=PATIENCE, check=True
    )
    assert ran.stdout == "interrupted\n"


@pytest.mark.parametrize("others_end", [True, False])
def test_a_sample_hangs_if_none_ends_meanwhile(
    monkeypatch: pytest.MonkeyPatch, *, others_end: bool
) -> None:
    future: Future[str] = Future()

    class Counting:
        slowest, looked = 0.0, 0

        @property
        def ended(self) -> int:
            self.looked += 1
            if self.looked == 10:
                future.set_result("loaded")
            return self.looked if others_end else 0

    monkeypatch.setattr(limit, "HANG_SECONDS", 0.0)
    patient = limit.Limit(Counting(), 1.0, print)  # type: ignore[arg-type]
    if others_end:
        assert patient.result(future) == "loaded"
    else:
        with pytest.raises(limit.HangError):
            patient.result(future)


@pytest.mark.skipif(
    sys.version_info[:2] != (3, 13) or gil_is_enabled(), reason="slow on 3.13 without the GIL only"
)
def test_get_of_a_large_dict_is_named_where_it_is_slow() -> None:
    class Words(Dataset):
        def __init__(self) -> None:
            self.vocabulary = {f"w{number}": number for number in range(2000)}

        def __getitem__(self, index: int) -> int:
            return self.vocabulary.get(f"w{index}", 0)

    (finding,) = check(Words()).findings
    assert finding.kind == "large-dict"
    assert "dataset.vocabulary has 2,000 entries" in finding.message
    assert "PerThread" in finding.advice
    assert not check(Words(), dataset_copy="deep").findings


def test_no_thread_stays_and_the_switch_interval_is_as_before() -> None:
    before = sys.getswitchinterval(), threading.active_count()
    check([1, 2, 3])
    assert (sys.getswitchinterval(), threading.active_count()) == before


@pytest.mark.parametrize("dataset", [[], {}], ids=["list", "dict"])
def test_an_empty_dataset_can_not_be_checked(dataset: Any) -> None:
    with pytest.raises(UncheckableError, match="no samples"):
        check(dataset)


def test_a_dataset_of_which_no_sample_can_be_loaded_can_not_be_checked() -> None:
    class Broken(Dataset):
        def __getitem__(self, index: int) -> int:
            raise KeyError(index)

    with pytest.raises(UncheckableError, match="KeyError: 0"):
        check(Broken())


def test_one_thread_reads_a_generator_so_nothing_is_found() -> None:
    report = check(number for number in range(8))
    assert (report.findings, report.loads) == ((), 0)
    assert "one thread reads an iterator" in report.notes[0]


def test_samples_that_fail_are_noted_and_the_others_checked() -> None:
    class Some(Dataset):
        def __getitem__(self, index: int) -> int:
            if index % 2:
                raise OSError(index)
            return index

    report = check(Some())
    assert not report.findings
    (note,) = report.notes
    assert note.startswith(
        f"{ROWS // 2} of {ROWS} samples raise an error; the first one, of index "
    )
    assert note.endswith(": OSError: 1")


def test_assert_thread_safe_passes_safe_datasets_and_fails_with_all_findings(
    tmp_path: Path,
) -> None:
    assert_thread_safe([1, 2, 3])
    with pytest.raises(AssertionError, match="SeekAndRead is not safe in threads") as raised:
        assert_thread_safe(SeekAndRead(tmp_path), indices=[0, 5], dataset_copy="shared")
    assert "shared-handle" in str(raised.value)
    assert "unsafe_datasets.py:" in str(raised.value)
