"""Nothing is redirected, and nothing is loaded for it, before a first worker needs it."""

from __future__ import annotations

import importlib.util
import subprocess
import sys

import pytest
from conftest import PATIENCE

needs_torch = pytest.mark.skipif(
    importlib.util.find_spec("torch") is None, reason="torch is not installed"
)
DATASET = """
import sys
from threadloader import ThreadLoader
class Draws:
    def __len__(self): return 6
    def __getitem__(self, index):
        import random
        import numpy as np
        return float(np.random.rand() + random.random())
def batches(**options):
    return [list(map(float, batch)) for batch in ThreadLoader(Draws(), 2, seed=1, **options)]
def loaded():
    return "threadloader._rng.redirect" in sys.modules
"""


def _printed(program: str) -> list[str]:
    command = [sys.executable, "-c", DATASET + program]
    return subprocess.check_output(command, text=True, timeout=PATIENCE).splitlines()


@pytest.mark.parametrize("threads", [0, 2])
def test_a_loader_whose_random_state_is_shared_never_redirects_anything(threads: int) -> None:
    program = f"batches(threads={threads}, isolate_rng=False)\nprint(loaded())"
    assert _printed(program) == ["False"]


def test_a_first_epoch_draws_what_any_other_draws() -> None:
    program = """
print(loaded(), "numpy.random" in sys.modules)
first = batches(threads=2)
print(loaded(), first == batches(threads=2) == batches(threads=0))
"""
    assert _printed(program)[1:] == ["True True"]
    assert _printed(program)[0].startswith("False")


@needs_torch
def test_an_interrupted_first_epoch_redirects_all_the_same_next_time() -> None:
    program = """
import torch
from threadloader._torch import random_state
whole = random_state.OperatorsByKey
def interrupted(*_):
    random_state.OperatorsByKey = whole
    raise KeyboardInterrupt
random_state.OperatorsByKey = interrupted
try:
    batches(threads=2)
except KeyboardInterrupt:
    print("interrupted")
torch.manual_seed(3)
first = torch.rand(1)
torch.manual_seed(3)
print(torch.equal(torch.rand(1), first), batches(threads=2) == batches(threads=0))
"""
    assert _printed(program) == ["interrupted", "True True"]


@needs_torch
def test_a_first_epoch_leaves_the_process_random_state_alone() -> None:
    program = """
import torch
torch.set_default_dtype(torch.float64)
torch.set_default_device("cpu")
torch.manual_seed(3)
state = torch.get_rng_state()
with torch.inference_mode():
    batches(threads=0)
from threadloader._rng import redirect
from threadloader._torch.random_state import OperatorsByKey
print(torch.equal(torch.get_rng_state(), state), type(redirect.operators) is OperatorsByKey)
"""
    assert _printed(program) == ["True True"]
