"""Naming a class and running an epoch leave the standard library as it is.

But for random numbers, while there are workers, and for `Thread.start`: the table of
``docs/design.md`` has them.
"""

from __future__ import annotations

import ast
import sys

import pytest
from support.child import printed_by

from threadloader import _torch

INHERITS = getattr(sys.flags, "thread_inherit_context", False)
STARTS = set() if INHERITS else {"threading.Thread.start"}
# `random._inst` has another class, and functions of both modules draw from the sample's streams.
DRAWS = ("random.", "numpy.random.")

# Prints what has changed: when a class was named, in samples, and after all epochs.
SCRIPT = """
import sys
{torch}
from support.patience import PATIENCE
import asyncio, bdb, contextlib, concurrent.futures, copy, ctypes, decimal, io, json, logging, os
import pdb, pickle, queue, random, signal, subprocess, tempfile, threading, traceback, types
import warnings
import numpy.random

def is_looked_at(module):
    return module.partition(".")[0] in sys.stdlib_module_names or module.startswith("numpy.random")

modules = {{name: module for name, module in sys.modules.items() if is_looked_at(name)}}

def facts(value):
    code = value.__code__ if type(value) is types.FunctionType else None
    return value, type(value), code

def look():
    found = {{}}
    for name, module in modules.items():
        for attribute, value in vars(module).copy().items():
            place = name + "." + attribute
            found[place] = facts(value)
            if isinstance(value, type) and value.__module__ == name:
                for inner, part in vars(value).copy().items():
                    found[place + "." + inner] = facts(part)
    return found

before = look()

def changed():
    now = look()
    # A submodule that is imported is an attribute of its package.
    added = [each for each in now.keys() - before.keys() if now[each][1] is not type(sys)]
    other = lambda name: any(a is not b for a, b in zip(before[name], now.get(name, [None] * 3)))
    return {{*filter(other, before), *added}}

from threadloader import ThreadLoader
named, inside = changed(), set()

class Samples:
    def __len__(self):
        return 3
    def __getitem__(self, index):
        inside.update(changed())
        return index

for threads in (None, 0, 2, 2):
    assert len(list(ThreadLoader(Samples(), threads=threads))) == 3
for worker in threading.enumerate():
    if worker is not threading.current_thread():
        worker.join(PATIENCE)  # random numbers are redirected until the last one ends
print([[*names] for names in (named, inside, changed())])
"""


@pytest.mark.parametrize("torch", [False, True] if _torch.AVAILABLE else [False])
def test_what_is_changed_of_the_standard_library_is_in_the_table(torch: bool) -> None:
    script = SCRIPT.format(torch="import torch" if torch else 'sys.modules["torch"] = None')
    named, inside, after = ast.literal_eval(printed_by(script))
    assert not named
    assert {name for name in inside if not name.startswith(DRAWS)} == STARTS
    assert set(after) == STARTS
