"""The memory of a process and its children."""

from __future__ import annotations

import subprocess
import sys

import pytest

from threadloader._replacement.memory import MemoryMeter, tree_pss

linux = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
SIZE = 64 << 20
CHILD = f"held = bytearray({SIZE}); held[::4096] = b'x' * len(held[::4096]); print(); input()"


@linux
def test_children_are_counted() -> None:
    before = tree_pss()
    with subprocess.Popen(
        [sys.executable, "-c", CHILD], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as child:
        assert child.stdout is not None
        child.stdout.readline()
        during = tree_pss()
    assert before is not None
    assert during is not None
    assert during - before > SIZE * 0.9


def test_there_is_a_peak_and_it_says_of_what() -> None:
    peak, kind = MemoryMeter().peak()
    assert kind.startswith(("PSS", "RSS"))
    assert peak is None or peak > 1 << 20
