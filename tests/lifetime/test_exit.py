"""The end of the process: clean and soon, whatever the loaders in it are doing.

Each test runs a child that prints a line when it is about to end; where time counts, it is taken
from there.  A child that does not end is killed, which its exit code tells.
Torch is hidden from the children that are not about it: its import takes seconds.
"""

from __future__ import annotations

import importlib.util
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from support.child import running
from support.patience import PATIENCE

LIMIT = 2.0  # seconds that running samples are waited for, as documented
FOR_EVER = 10 * PATIENCE  # seconds of a sample that nobody waits for

HAS_TORCH = importlib.util.find_spec("torch") is not None

PREAMBLE = """
import sys, threading, time
{hide}
import numpy as np
from threadloader import ThreadLoader
from threadloader._batch import layout

layout.SLOT_NBYTES = 1  # small leaves take slots, too

class Numbers:
    def __init__(self, size=100, slow=(), seconds=0.0):
        self.size, self.slow, self.seconds = size, slow, seconds
        self.entered = threading.Event()

    def __len__(self):
        return self.size

    def __getitem__(self, index):
        if index in self.slow:
            self.entered.set()
            time.sleep(self.seconds)
            print("sample ended", flush=True)
        return np.full(4, index)

def say(text):
    print(text, flush=True)

"""
HIDE_TORCH = "sys.modules['torch'] = None"

on_posix = pytest.mark.skipif(
    sys.platform == "win32", reason="Windows cannot send SIGINT to one process"
)


@contextmanager
def child(script: str, *, torch: bool = False) -> Iterator[subprocess.Popen[bytes]]:
    """Run a script in an interpreter of its own."""
    preamble = PREAMBLE.format(hide="" if torch else HIDE_TORCH)
    # Unbuffered, or what follows a line that is awaited would be in a buffer, and lost.
    options: dict[str, Any] = {"stderr": subprocess.PIPE, "bufsize": 0}
    with running(sys.executable, "-c", preamble + script, **options) as process:
        yield process


def await_line(process: subprocess.Popen[bytes], line: str) -> None:
    """Read the child's output up to a line."""
    assert process.stdout is not None
    for read in process.stdout:
        if read.decode().strip() == line:
            return
    assert process.stderr is not None
    pytest.fail(f"the child never said {line!r}: {process.stderr.read().decode()}")


def end_of(process: subprocess.Popen[bytes]) -> tuple[int, str, str]:
    """Wait for the child; return its exit code and its outputs."""
    output, errors = process.communicate()
    return process.returncode, output.decode(), errors.decode()


def run(script: str, *, torch: bool = False) -> tuple[int, str, str]:
    """Run a child to its end, past its line ``leaving``."""
    with child(script, torch=torch) as process:
        await_line(process, "leaving")
        return end_of(process)


HALF_WAY = {
    "an iterator half-way": """
iterator = iter(ThreadLoader(Numbers(), 4, threads=3))
next(iterator)
say("leaving")
""",
    "persistent workers, half-way": """
loader = ThreadLoader(Numbers(), 4, threads=3, persistent_workers=True)
iterators = [iter(loader), iter(loader)]
next(iterators[0])
say("leaving")
""",
    "an iterator in a reference cycle": """
class Trainer:
    def __init__(self):
        self.itself = self
        self.batches = iter(ThreadLoader(Numbers(), 4, threads=3))
next(Trainer().batches)
say("leaving")
""",
    "an error that is kept": """
iterator = iter(ThreadLoader([1, 2], sampler=[0, 1, 2, 0, 1], threads=2))
try:
    for batch in iterator:
        pass
except IndexError as error:
    kept = error
say("leaving")
""",
    "a daemon thread that starts epoch after epoch": """
loader = ThreadLoader(Numbers(slow=[9], seconds=0.01), 4, threads=3, output="numpy")

def consume():
    while True:
        list(loader)

threading.Thread(target=consume, daemon=True).start()
loader.dataset.entered.wait()
say("leaving")
""",
}


@pytest.mark.parametrize("script", HALF_WAY.values(), ids=HALF_WAY)
def test_the_interpreter_exits_cleanly_with(script: str) -> None:
    code, _, errors = run(script)
    assert (code, errors) == (0, "")


def test_an_uncaught_error_of_a_sample_is_shown_with_the_users_frames_and_a_note() -> None:
    code, _, errors = run("""
class Broken(Numbers):
    def __getitem__(self, index):
        return self.decode(index)
    def decode(self, index):
        raise ValueError("bad sample")
say("leaving")
for batch in ThreadLoader(Broken(), 4, threads=1):
    pass
""")
    assert code == 1
    assert errors.splitlines()[-2:] == ["ValueError: bad sample", "in worker 0, batch 0, index 0"]
    assert "in decode" in errors
    assert errors.count("Traceback") == 1


STUCK = {
    "an iterator": ("", ""),
    "persistent workers": (", persistent_workers=True", ""),
    "an iterator that was dropped": ("", "del iterator"),
}


@pytest.mark.parametrize(("option", "then"), STUCK.values(), ids=STUCK)
def test_a_running_sample_ends_before_the_process_does(option: str, then: str) -> None:
    code, output, errors = run(f"""
loader = ThreadLoader(Numbers(slow=[0], seconds=0.5), threads=2{option})
iterator = iter(loader)
loader.dataset.entered.wait()
{then}
say("leaving")
""")
    assert (code, output, errors) == (0, "sample ended\n", "")


def test_samples_that_never_end_share_one_limit_and_do_not_keep_the_process() -> None:
    many = int(1.5 * PATIENCE / LIMIT)  # which one after the other the watchdog would not let end
    code, output, errors = run(f"""
loaders = [
    ThreadLoader(Numbers(slow=[0], seconds={FOR_EVER}), threads=1, persistent_workers=n % 2 == 1)
    for n in range({many})
]
iterators = [iter(loader) for loader in loaders]
for loader in loaders:
    loader.dataset.entered.wait()
del iterators[:2]
say("leaving")
""")
    assert (code, output, errors) == (0, "", "")  # and not that of the watchdog


# Ctrl-C


def interrupted(script: str) -> tuple[int, str, str]:
    """Run a child and send it SIGINT when it says ``waiting``."""
    with child(script) as process:
        await_line(process, "waiting")
        process.send_signal(signal.SIGINT)
        return end_of(process)


# The sample of index 6 goes on when the main thread asks for its batch, or is about to, and ends so
# many seconds after the signal came, however late that is sent.  The pause is no synchronisation:
# without it CPython 3.13t misses a signal that comes just before a lock is waited for (8 of 40 runs
# of a bare Condition.wait, none on 3.11 and 3.13).
WAITING = """
asked, caught = threading.Event(), threading.Event()

class Waiting(Numbers):
    again = False

    def __getitem__(self, index):
        if index == 6 and not self.again:
            asked.wait()
            time.sleep(0.5)
            say("waiting")
            caught.wait()
            time.sleep({seconds})
        return index

loader = ThreadLoader(Waiting(8), threads=2, persistent_workers={persistent})
"""
LOOP = """
try:
    for batch in loader:
        if batch[0] == 5:
            asked.set()
except KeyboardInterrupt:
    caught.set()
"""
each_kind_of_workers = pytest.mark.parametrize("persistent", [False, True])


@on_posix
def test_ctrl_c_ends_the_process_though_a_sample_never_ends() -> None:
    code, _, errors = interrupted(
        WAITING.format(seconds=FOR_EVER, persistent=True) + LOOP + "    raise"
    )
    assert code == -signal.SIGINT
    assert errors.count("Traceback") == 1


@on_posix
@each_kind_of_workers
def test_ctrl_c_that_is_caught_leaves_the_loader_usable(persistent: bool) -> None:
    code, output, errors = interrupted(
        WAITING.format(seconds=0.2, persistent=persistent)
        + LOOP
        + """
    say("caught")
Waiting.again = True
say([int(batch[0]) for batch in loader])
"""
    )
    assert (code, errors) == (0, "")
    assert output.splitlines() == ["caught", "[0, 1, 2, 3, 4, 5, 6, 7]"]


@on_posix
def test_ctrl_c_that_is_kept_keeps_no_slot_no_iterator_and_no_thread() -> None:
    code, output, errors = interrupted(
        WAITING.format(seconds=0.2, persistent=False)
        + """
import weakref
iterator = iter(loader)
gone = weakref.ref(iterator)
try:
    for number, batch in enumerate(iterator):
        if number == 5:
            asked.set()
except KeyboardInterrupt as error:
    kept = error
    caught.set()
del iterator, batch
for thread in threading.enumerate():
    if "-worker-" in thread.name:
        thread.join()
slots = loader.statistics().slots
say((gone() is None, slots.leased, slots.filling))
"""
    )
    assert (code, errors) == (0, "")
    assert output.strip() == "(True, 0, 0)"


# torch


TORCH_OPERATIONS = """
import torch

class Products:
    def __init__(self):
        self.entered = threading.Event()

    def __len__(self):
        return 10_000

    def __getitem__(self, index):
        matrix = torch.randn(200, 200)
        for _ in range(20):
            matrix = torch.tanh(matrix @ matrix)
        self.entered.set()
        return matrix

loader = ThreadLoader(Products(), 8, threads=4, persistent_workers=True)
iterator = iter(loader)
loader.dataset.entered.wait()
say("leaving")
"""


@pytest.mark.skipif(not HAS_TORCH, reason="torch is not installed")
def test_torch_at_work_in_the_workers_does_not_abort_the_process() -> None:
    code, _, errors = run(TORCH_OPERATIONS, torch=True)
    assert (code, errors) == (0, "")
