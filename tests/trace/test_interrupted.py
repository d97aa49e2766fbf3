"""Ctrl-C while a traced loader hands over a batch leaves no lock held, and no slice without end."""

from __future__ import annotations

import dis
import itertools
import json
import signal
import sys
from _thread import interrupt_main
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from support.chrome_format import Trace
from support.patience import PATIENCE

from threadloader import ClosedError, ThreadLoader

if TYPE_CHECKING:
    from pathlib import Path
    from types import FrameType

    from support.patience import Spawn

ROWS = [np.full(5, i, dtype=np.float32) for i in range(26)]
FILES = ("traced.py", "epoch_tracer.py", "recorder.py")
MISSES = 10  # calls in a row that end before the n-th instruction: with threads, not all wait


class Pending(int):
    """Ctrl-C, pending from when `now` is looked up: no Python code runs for that."""

    now = property(interrupt_main)


class Interrupter:
    """Lets Ctrl-C be pending before the n-th instruction that may raise it, in what traces.

    See `Tracer` in support/interrupts.py, which does so in the whole package.
    """

    def __init__(self, which: int) -> None:
        self.left = which
        self.where = ""
        self.pending = Pending(signal.SIGINT)

    def __call__(self, frame: FrameType, event: str, arg: Any) -> Any:  # noqa: ARG002
        if not frame.f_code.co_filename.endswith(FILES):
            return None
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        return self.trace

    def trace(self, frame: FrameType, event: str, arg: Any) -> Any:  # noqa: ARG002
        if event != "opcode":
            return self.trace
        name = dis.opname[frame.f_code.co_code[frame.f_lasti]]
        if not name.startswith(("CALL", "RESUME", "JUMP_BACKWARD")):
            return self.trace
        self.left -= 1
        if self.left:
            return self.trace
        self.where = f"{frame.f_code.co_qualname}, line {frame.f_lineno}"
        sys.settrace(None)
        self.pending.now  # noqa: B018
        return None


@pytest.mark.parametrize("threads", [0, 2])
def test_an_interrupt_in_what_traces_leaves_no_lock_held_and_no_slice_without_end(
    threads: int, tmp_path: Path, spawn: Spawn
) -> None:
    loader: ThreadLoader[Any] = ThreadLoader(ROWS, 4, threads=threads)
    seen, misses = set(), 0
    for which in itertools.count(1):
        path, came = tmp_path / f"{which}.json", False
        with loader.trace(path):
            iterator = iter(loader)
            next(iterator)
            interrupter = Interrupter(which)
            try:
                sys.settrace(interrupter)
                next(iterator)
            except KeyboardInterrupt:
                came = True
            finally:
                sys.settrace(None)
            if not interrupter.where:
                misses += 1
                if misses == MISSES:
                    break
                iterator.close()
                continue
            misses = 0
            assert came, interrupter.where
            with pytest.raises(ClosedError):  # and not: wait for a lock that nobody gives back
                spawn(next, iterator).result(PATIENCE)
            assert len(list(loader)) == 7
        trace = Trace(json.loads(path.read_text()))  # an interrupted stage may be missing
        # What came up in the first epoch ended before the second one began.
        second = [each for each in trace.of("next") if each["args"]["epoch"] == 2]
        assert len(second) == 8
        consumer = second[0]["tid"]
        for each in trace.slices:
            if each["tid"] == consumer and each.get("args", {}).get("epoch") == 1:
                assert each["ts"] + each["dur"] <= second[0]["ts"], interrupter.where
        seen.add(interrupter.where.partition(",")[0])
    loader.close()  # the epoch that was not interrupted; its traced frames may live on
    # Later ones trace fewer instructions of a frame that was entered.
    if sys.version_info < (3, 12):
        assert {"_TracedTurn.__exit__", "_TracedTurn.__enter__", "Recorder.end"} <= seen
