"""Operators in a worker use one thread, and the consumer's keep their number.

In an interpreter of its own: torch's number of threads is that of the process.
"""

from __future__ import annotations

import ctypes
from contextlib import suppress

import pytest
import torch
from support.child import printed_by


def _has_mkl() -> bool:
    with suppress(OSError):
        library = torch._C.__file__  # noqa: SLF001  # what torch is linked with is reached by it
        return hasattr(ctypes.CDLL(library), "MKL_Get_Max_Threads")
    return False


SCRIPT = """
import ctypes, torch
from threadloader import ThreadLoader
torch.set_num_threads(3)
ask = ctypes.CDLL(torch._C.__file__).MKL_Get_Max_Threads
before = ask()

class Asks:
    def __len__(self):
        return 2
    def __getitem__(self, index):
        return ask()

workers = {int(answer) for answer in ThreadLoader(Asks(), None, threads=1)}
print(sorted(workers), ask() == before == 3)
"""


@pytest.mark.skipif(not _has_mkl(), reason="torch was built without MKL")
def test_mkl_uses_one_thread_in_a_worker_whatever_was_set_before() -> None:
    assert printed_by(SCRIPT).split() == ["[1]", "True"]
