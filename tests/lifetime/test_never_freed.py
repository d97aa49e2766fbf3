"""What is kept is never freed; page-locked memory is, where nothing is wrong."""

from __future__ import annotations

import os

import pytest
from support.child import run_child

# Whoever frees the memory ends the process, as in C++.
HEAD = """
import ctypes, os
from threadloader._lifetime import DeviceMemory, leak

new = ctypes.pythonapi.PyCapsule_New
new.restype, new.argtypes = ctypes.py_object, [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]

def memory():
    return new(1, None, ctypes.cast(ctypes.CDLL(None).abort, ctypes.c_void_p).value)
"""

with_abort = pytest.mark.skipif(os.name != "posix", reason="abort is found as POSIX has it")


def exit_code(script: str) -> int:
    """Return that of a child."""
    return run_child(HEAD + script)[0]


@with_abort
def test_what_is_kept_outlives_the_interpreter() -> None:
    assert exit_code("held = [memory()]") != 0
    assert exit_code("held = [memory()]; leak(held)") == 0


@with_abort
def test_page_locked_memory_is_left_to_the_system_when_the_interpreter_ends() -> None:
    assert exit_code("held = DeviceMemory(memory(), lambda: None)") == 0
    assert exit_code("held = DeviceMemory(memory(), lambda: None); del held") != 0


@with_abort
@pytest.mark.skipif(not hasattr(os, "fork"), reason="the system has no fork")
def test_page_locked_memory_of_the_parents_is_not_freed_in_a_forked_child() -> None:
    script = """
held = DeviceMemory(memory(), lambda: None)
child = os.fork()
if child == 0:
    del held
    os._exit(0)
os._exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) & 0xFF)
"""
    assert exit_code(script) == 0
