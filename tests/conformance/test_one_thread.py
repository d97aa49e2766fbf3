"""Operators in a worker use one thread, and the consumer's keep their number.

Each test has an interpreter of its own: torch's number of threads is that of the process.
"""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import torch
from support.patience import PATIENCE

import threadloader

if TYPE_CHECKING:
    from collections.abc import Callable
    from concurrent.futures import Future

    Spawn = Callable[..., Future[str]]


def _has_mkl() -> bool:
    with suppress(OSError):
        library = torch._C.__file__  # noqa: SLF001  # what torch is linked with is reached by it
        return hasattr(ctypes.CDLL(library), "MKL_Get_Max_Threads")
    return False


PREAMBLE = """
import ctypes, torch
from threadloader import ThreadLoader
torch.set_num_threads({threads})

class Asks:
    def __len__(self):
        return 2
    def __getitem__(self, index):
        return ask()

def workers():
    loader = ThreadLoader(Asks(), None, threads=1)
    return {{int(answer) for answer in loader}}
"""
MKL = """
ask = ctypes.CDLL(torch._C.__file__).MKL_Get_Max_Threads
before = ask()
print(sorted(workers()), ask() == before == {threads})
"""
# OpenMP out of reach, and no thread to be had for the helper that sets torch's number back.
NO_HELPER = """
from threadloader._torch import threads

class NoThread:
    def __init__(self, **arguments):
        tried.append(arguments)
    def start(self):
        raise RuntimeError("can't start new thread")

class NoLibrary:
    def CDLL(name):
        raise OSError(name)

tried = []
threads.Thread, threads.ctypes = NoThread, NoLibrary
ask = torch.get_num_threads
workers()  # raises nothing
print(len(tried), ask())
import threading
def answer():
    tried.append(ask())
new = threading.Thread(target=answer)
new.start()
new.join()
print(tried[-1])
"""


def printed(script: str, threads: int, spawn: Spawn) -> list[str]:
    """Return the words that a script prints."""
    environment: dict[str, Any] = os.environ | {
        "PYTHONPATH": str(Path(threadloader.__file__).parents[1])
    }
    ran = spawn(
        lambda: (
            subprocess.run(
                [sys.executable, "-c", (PREAMBLE + script).format(threads=threads)],
                capture_output=True,
                text=True,
                check=True,
                timeout=PATIENCE,
                env=environment,
            ).stdout
        )
    )
    return ran.result(2 * PATIENCE).split()


@pytest.mark.skipif(not _has_mkl(), reason="torch was built without MKL")
@pytest.mark.parametrize("threads", [2, 3])
def test_mkl_uses_one_thread_in_a_worker_whatever_was_set_before(
    threads: int, spawn: Spawn
) -> None:
    assert printed(MKL, threads, spawn) == ["[1]", "True"]


def test_where_no_thread_can_be_had_torch_s_number_stays_as_it_was(spawn: Spawn) -> None:
    assert printed(NO_HELPER, 3, spawn) == ["1", "3", "3"]
