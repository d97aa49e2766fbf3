"""What belongs to the process, where samples take it for their worker's own."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import io
import os
import random
import signal
import sys
import threading
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from support.acting import Acting
from support.child import run_child
from support.patience import PATIENCE

from threadloader import ThreadLoader, _torch
from threadloader._fetch import process_wide


def recorded() -> Any:
    return warnings.catch_warnings(record=True)


def elsewhere() -> Any:
    return contextlib.redirect_stdout(io.StringIO())


def unseen() -> Any:
    return contextlib.redirect_stderr(io.StringIO())


def chdir() -> Any:
    return contextlib.chdir("/")


def state() -> tuple[Any, ...]:
    return warnings.filters, warnings.showwarning, sys.stdout, sys.stderr, os.getcwd()  # noqa: PTH109


@pytest.mark.parametrize("block", [warnings.catch_warnings, recorded, elsewhere, unseen, chdir])
@pytest.mark.parametrize("threads", [2, 4])
def test_blocks_that_overlap_in_samples_leave_what_was_before(
    block: Callable[[], Any], threads: int
) -> None:
    """All have begun before the first ends, and they end in the order in which they began."""
    begun = threading.Barrier(threads)
    ended = [threading.Event() for _ in range(threads + 1)]
    order: list[int] = []

    def sample(index: int) -> int:
        if not index:  # the first sample of all runs alone
            return index
        with block():
            place = len(order)
            order.append(index)
            begun.wait(PATIENCE)
            if order[0] != index:
                assert ended[order[order.index(index) - 1]].wait(PATIENCE)
        ended[index].set()
        return place

    before, text = state(), io.StringIO()
    loader = ThreadLoader(Acting(threads + 1, sample=sample), threads=threads)
    assert len(list(loader)) == threads + 1
    assert state() == before
    with contextlib.redirect_stdout(text):
        sys.stdout.write("seen")
    assert text.getvalue() == "seen"


@pytest.mark.skipif(not _torch.AVAILABLE, reason="torch is not installed")
def test_a_number_of_torchs_threads_is_the_workers_own() -> None:
    script = """
import threading, torch
from threadloader import ThreadLoader
torch.set_num_threads(3)
def numbers():
    found = [torch.get_num_threads()]
    thread = threading.Thread(target=lambda: found.append(torch.get_num_threads()))
    thread.start()
    thread.join()
    return found
class Rows:
    __len__ = lambda _: 8
    def __getitem__(self, index):
        if here:
            torch.set_num_threads(2)
        return torch.get_num_threads()
for here in (True, False):
    for options in ({}, {"num_workers": 2}):
        init = None if here else lambda _: torch.set_num_threads(2)
        seen = []
        for batch in ThreadLoader(Rows(), worker_init_fn=init, **options):
            seen += batch.tolist()
            assert numbers() == [3, 3], numbers()
        print(set(seen), numbers())
torch.set_num_threads(1)
print(numbers())
try:
    torch.set_num_threads("one")
except (RuntimeError, TypeError):
    print("refused")
"""
    _, told, complaint = run_child(script)
    assert told.splitlines() == [*["{2} [3, 3]"] * 4, "[1, 1]", "refused"], complaint


def loop(_: int) -> Any:
    return asyncio.get_event_loop()


def alarm(_: int) -> Any:
    return signal.signal(signal.SIGALRM, signal.SIG_IGN)


@pytest.mark.parametrize(
    ("sample", "error", "hint"),
    [
        pytest.param(
            loop,
            RuntimeError,
            "asyncio.run",
        ),
        pytest.param(alarm, ValueError, "give the loader timeout="),
    ],
)
def test_an_error_of_being_a_thread_says_what_to_do(
    sample: Callable[[int], Any], error: type[Exception], hint: str
) -> None:
    with pytest.raises(error) as caught:
        list(ThreadLoader(Acting(8, sample=sample), threads=2))
    assert hint in caught.value.__notes__[1]
    with pytest.raises(error) as caught:
        list(ThreadLoader(Acting(8), threads=2, worker_init_fn=sample))
    assert hint in caught.value.__notes__[1]


FUNCTIONS = [random.random, random.getrandbits, np.random.rand, np.random.uniform]


def test_functions_are_equal_to_those_that_compilers_know() -> None:
    def now() -> list[Any]:
        return [random.random, random.getrandbits, np.random.rand, np.random.uniform]

    def sample(_: int) -> bool:
        known = dict.fromkeys(FUNCTIONS, "a type")
        return all(known.get(function) for function in now())

    for batch in ThreadLoader(Acting(8, sample=sample), threads=2):
        assert all(batch)
        assert sample(0)
        assert now() == FUNCTIONS
        assert now()[0] != FUNCTIONS[1]
        assert np.random.rand.__name__ == "rand"


def sets_folder(_: int) -> None:
    os.chdir(os.getcwd())  # noqa: PTH109


def sets_global(_: int) -> None:
    global HANDLE  # noqa: PLW0603
    HANDLE = object()


def sets_by_a_class(_: int) -> None:
    Sets().set()


class Sets:
    def set(self) -> None:
        gc.enable()


def reads_variable(_: int) -> None:
    os.environ.get("HOME")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")


HANDLE = object()
SETTING = {
    sets_folder: "os.chdir",
    sets_global: "the global HANDLE",
    sets_by_a_class: "gc.enable",
}


@pytest.mark.parametrize("function", SETTING)
def test_what_a_worker_init_fn_sets_for_all_is_said_once(
    function: Callable[[int], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(process_wide, "_looked_into", set())
    first = function.__code__.co_firstlineno
    lines = range(first, first + 8)
    said = []
    for _ in range(2):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always", UserWarning)
            list(ThreadLoader(range(4), threads=2, worker_init_fn=function))
        said += caught
    (warning,) = said
    told = str(warning.message)
    assert SETTING[function] in told
    assert any(f"{os.path.basename(__file__)}:{line}" in told for line in lines)  # noqa: PTH119
    assert warning.filename == __file__


def test_what_a_sample_sets_for_all_is_said_where_the_loop_begins() -> None:
    class Sets:
        def __len__(self) -> int:
            return 4

        def __getitem__(self, index: int) -> int:
            sets_folder(index)
            return index

    with pytest.warns(UserWarning, match=r"sets_folder sets os\.chdir \(.*, which workers and"):
        list(ThreadLoader(Sets(), threads=2))
    list(ThreadLoader(Sets(), threads=2))
    list(ThreadLoader(Acting(8), threads=2, worker_init_fn=reads_variable))
