"""A user's module of datasets, in the current folder."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

MODULE = """
import faulthandler
import multiprocessing
import signal
import threading
import time
import numpy as np

class Numbers:
    def __len__(self):
        return 5
    def __getitem__(self, index):
        return {"x": np.full(3, index), "y": index}

class Reader:
    position = 0
    def __copy__(self):  # one for all workers
        return self
    def read(self, index):
        self.position = index
        time.sleep(1e-4)
        return self.position

class Unsafe(Numbers):
    def __init__(self):
        self.reader = Reader()
    def __getitem__(self, index):
        return self.reader.read(index)

class Failing(Numbers):
    def __getitem__(self, index):
        if index % 2:
            raise KeyError(index)
        return index

class Crashing(Numbers):
    inside, crashes = 0, threading.Lock()
    def __getitem__(self, index):
        Crashing.inside += 1
        time.sleep(1e-4)
        if Crashing.inside > 1 and self.crashes.acquire(blocking=False):
            faulthandler._sigsegv()  # no other thread runs meanwhile
        Crashing.inside -= 1
        return index

class ForThreads(Numbers):
    def __getitem__(self, index):
        if multiprocessing.parent_process() is not None:
            raise ValueError("no processes")
        return index

class Starting(Numbers):  # by forkserver
    def __reduce__(self):
        return started, ()

def started():
    print("Starting", flush=True)
    try:
        while signal.SIGINT not in signal.sigpending():
            time.sleep(0.01)
    except KeyboardInterrupt:
        raise ImportError  # NumPy's, of an import that was interrupted
    return Numbers()

class Holder:
    rows = [1, 2, 3]
class Stream:
    def __iter__(self):
        return iter(range(4))
def made():
    return [4, 5, 6]
def broken():
    raise OSError("no disk\\nnor tape")
unsafe = Unsafe()
number = 3
empty = []
stream = iter(range(3))
collate = len
"""


@pytest.fixture(autouse=True)
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with the module, which is the current one."""
    (tmp_path / "user_datasets.py").write_text(MODULE, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    monkeypatch.delitem(sys.modules, "user_datasets", raising=False)
    return tmp_path
