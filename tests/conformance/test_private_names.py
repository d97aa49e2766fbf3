"""Private names in the table of ``docs/design.md`` are taken away: what is left goes on.

Several at once, of functions that do not know of each other: torch's import takes seconds.
"""

from __future__ import annotations

import os

import pytest
from support.child import run_child

# Torch is imported once; the package in a forked child for each case.
FORKING = """
import os, random, sys, warnings
import numpy as np, torch

for program in {programs}:
    child = os.fork()
    if not child:
        exec(program, globals())
        sys.stdout.flush()
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
"""
PROGRAM = """
{taken}
import threadloader
from threadloader import ThreadLoader, sample_rng

class Drawing:
    def __len__(self): return 12
    def __getitem__(self, index):
        drawn = {{
            "random": random.random(),
            "numpy": float(np.random.rand()),
            "torch": torch.rand(1).item(),
            "sample_rng": sample_rng().random(),
        }}
        return {{name: drawn[name] for name in drawn if name not in {lost}}}

def batches(threads):
    loader = ThreadLoader(Drawing(), 2, threads=threads, seed=1, collate_fn=list)
    return [batch for batch in loader]

with warnings.catch_warnings(record=True) as told:
    warnings.simplefilter("always")
    expected = batches(0)
    print(all(batches(threads) == expected for threads in (0, 1, 3)))
print([str(each.message) for each in told if "redirected" in str(each.message)])
print(0 <= random.random() < 1, 0 <= np.random.rand() < 1, 0 <= torch.rand(1).item() < 1)
"""
PROFILED = """
with threadloader.profile() as profile:
    batches(1)
print(any("threadloader" in event.key for event in profile.key_averages()))
"""

TAKEN = [
    (
        "del torch._C._dispatch_tls_set_dispatch_key_included, random._inst",
        ["random", "torch"],
        "",
    ),
    (
        """
torch._C._jit_get_schemas_for_operator = lambda name: []
del np.random.mtrand._rand, torch._C._profiler._ExperimentalConfig
""",
        ["numpy", "torch"],
        PROFILED,
    ),
]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="forks")
def test_samples_draw_the_same_from_all_else_and_a_warning_says_what_is_lost() -> None:
    programs = [PROGRAM.format(taken=taken, lost=lost) + then for taken, lost, then in TAKEN]
    code, out, complaints = run_child(FORKING.format(programs=programs))
    assert code == 0, complaints
    lines = iter(out.splitlines())
    for _, lost, then in TAKEN:
        assert next(lines) == "True"
        told = next(lines)
        assert told.count("sample_rng()") == len(lost)
        assert all(f"{name} " in told or f"{name}.random " in told for name in lost)
        assert next(lines) == "True True True"
        assert not then or next(lines) == "True"
