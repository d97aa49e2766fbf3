"""Ctrl-C at any instruction leaves a loader that is usable, and prints nothing.

Each form of a loader is interrupted in a process of its own, see support/interrupts.py: at one
instruction after the other, as many apart as `STRIDE` says (1 for all of them: minutes).  Real
signals, while the loop waits, are those of tests/lifetime/test_exit.py.
"""

from __future__ import annotations

import dis
import os
import signal
import time
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from threading import Event
from types import CodeType
from typing import Any

import pytest
from support.child import run_python
from support.patience import PATIENCE

import threadloader
from threadloader._lifetime import when_dropped
from threadloader._threads.starting import Joinable, start_all

SCRIPT = Path(__file__).parents[1] / "support" / "interrupts.py"
STRIDE = int(os.environ.get("INTERRUPTS_STRIDE", "307"))
FORMS = (
    "map",
    "inline",
    "stream",
    "inline stream",
    "persistent",
    "transform",
    "unordered",
)


def interrupt(form: str, stride: int, *, torch: bool = False) -> int:
    """Return how many interrupts there were; fail if anything is wrong afterwards."""
    ran = run_python(SCRIPT, form, stride, env={"INTERRUPTS_WITH_TORCH": str(int(torch))})
    *wrong, count = ran.stdout.splitlines() or [""]
    assert (wrong, ran.stderr, ran.returncode) == ([], "", 0)
    return int(count.removeprefix("interrupts: "))


@pytest.mark.parametrize("form", FORMS)
def test_an_interrupt_at_any_instruction_leaves_a_usable_loader(form: str) -> None:
    assert interrupt(form, STRIDE) > 2000 / STRIDE


@pytest.mark.skipif(find_spec("torch") is None, reason="needs torch")
def test_an_interrupt_at_any_instruction_leaves_a_usable_loader_with_torch() -> None:
    assert interrupt("map", 4 * STRIDE, torch=True) > 500 / STRIDE


def code_in(code: CodeType) -> Iterator[CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from code_in(constant)


def loops_that_leave_a_with_block(code: CodeType) -> Iterator[int]:
    """Yield the lines of loops in a ``with`` block that an interrupt leaves without its exit.

    CPython 3.12 and later lose the handler of some jumps: those that go on with a loop or
    comprehension after a condition was false.  Source: python/cpython issue 108214.
    """
    instructions = {each.offset: each for each in dis.get_instructions(code)}
    blocks: dict[int, list[Any]] = {}
    entries: Any = dis.Bytecode(code).exception_entries
    for entry in entries:
        blocks.setdefault(entry.target, []).append(entry)
    for target, ranges in blocks.items():
        names = [each.opname for offset, each in instructions.items() if offset >= target]
        if names[1] != "WITH_EXCEPT_START":
            continue
        first, last = min(each.start for each in ranges), max(each.end for each in ranges)
        for offset, instruction in instructions.items():
            if not (first < offset < last and instruction.opname == "JUMP_BACKWARD"):
                continue
            covered = any(entry.start <= offset < entry.end for entry in entries)
            if not covered and first <= instruction.argval < last:
                yield code.co_firstlineno


def test_no_interrupt_leaves_a_lock_held_at_the_jump_of_a_loop() -> None:
    harmless = {
        ("pool.py", "_run"),  # in a worker, which is not interrupted
    }
    folder = Path(threadloader.__file__).parent
    # Not the commands, which end with an interrupt.
    paths = [path for path in folder.rglob("*.py") if "cli" not in path.parts]
    assert len(paths) > 100
    found = {
        (path.name, code.co_name)
        for path in paths
        for code in code_in(compile(path.read_text(), path.name, "exec"))
        if list(loops_that_leave_a_with_block(code))
    }
    assert found <= harmless


@pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="the system has no such timer")
def test_a_thread_whose_join_was_interrupted_is_joined_again() -> None:
    go_on = Event()
    ended: list[bool] = []

    def run() -> None:
        ended.append(go_on.wait(PATIENCE))

    thread = Joinable(target=run, name="tl-joined", daemon=True)
    start_all([thread])
    before = signal.signal(signal.SIGALRM, signal.default_int_handler)
    signal.setitimer(signal.ITIMER_REAL, 0.2)
    with pytest.raises(KeyboardInterrupt):
        thread.join()
    signal.signal(signal.SIGALRM, before)
    assert thread.is_alive()
    go_on.set()
    thread.join()
    assert ended == [True]


class Dropped:
    """What a test drops."""


def interrupts_once() -> Callable[[], None]:
    """Return a function that Ctrl-C comes up in when it is called first."""
    calls: list[int] = []

    def function() -> None:
        calls.append(1)
        if len(calls) == 1:
            raise KeyboardInterrupt

    function.calls = calls  # type: ignore[attr-defined]
    return function


def test_an_interrupt_in_a_finalizer_comes_up_behind_it_and_the_finalizer_is_done() -> None:
    function: Any = interrupts_once()
    held = [Dropped()]
    when_dropped(held[0], function)

    def drop() -> None:
        held.clear()
        for _ in range(12_000):  # not once: a signal may come just before it waits
            time.sleep(0.01)

    with pytest.raises(KeyboardInterrupt):
        drop()
    assert len(function.calls) == 2


def test_what_was_interrupted_when_it_was_called_is_called_again() -> None:
    function: Any = interrupts_once()
    dropped = Dropped()
    call = when_dropped(dropped, function)
    with pytest.raises(KeyboardInterrupt):
        call()
    del dropped
    assert len(function.calls) == 2
