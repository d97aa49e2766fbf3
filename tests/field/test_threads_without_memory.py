"""A thread ends for want of memory, wherever that may be: `next()` raises, and waits for nobody."""

from __future__ import annotations

import pytest
from support.child import run_child
from support.patience import PATIENCE

pytest.importorskip("_testcapi")

# Fails 50 allocations, others in each child; one that waits for ever exits with 1.
SCRIPT = """
import _testcapi, os, sys, warnings
sys.modules["torch"] = None  # its import takes seconds
import numpy
from threadloader import ThreadLoader
from threadloader._engine import hanging
from threadloader._threads import starting

warnings.simplefilter("ignore")  # of forks where there are threads
starting.LOOK_SECONDS = 0.01  # a thread that never begins is given up after as many looks
hanging.WARNED_SECONDS = 0.5  # until the loop looks for threads that have ended
def load(loader):
    return len(list(loader))

class Dataset:
    def __len__(self):
        return 60
    def __getitem__(self, index):
        return index

def loader():
    return ThreadLoader(Dataset(), 4, threads=%d, output="numpy")

hung = []
for first in range(300, 1300, 40):
    child = os.fork()
    if child == 0:
        import faulthandler
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)  # of threads that end
        load(loader())
        again = loader()
        faulthandler.dump_traceback_later(%d, exit=True)
        _testcapi.set_nomemory(first, first + 50)
        try:
            load(again)
        except BaseException:
            pass
        finally:
            _testcapi.remove_mem_hooks()
            os._exit(0)  # also after an error in that handler
    # What native code makes of having no memory, a signal say, is its own affair.
    if os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 1:
        hung.append(first)
print(hung)
"""


@pytest.mark.parametrize("threads", [1, 3])
def test_a_worker_without_memory_leaves_nobody_waiting(threads: int) -> None:
    code, told, complaint = run_child(SCRIPT % (threads, PATIENCE / 2))
    assert (code, told) == (0, "[]"), complaint
