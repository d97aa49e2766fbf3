"""Private names in the table of ``docs/design.md`` are taken away: what is left goes on.

Several at once, of functions that do not know of each other: torch's import takes seconds.
"""

from __future__ import annotations

import pytest
from support.child import run_child

PROGRAM = """
import warnings
import random, numpy as np, torch
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

TAKEN = {
    "a dispatch key and an instance": (
        "del torch._C._dispatch_tls_set_dispatch_key_included, random._inst",
        ["random", "torch"],
        "",
    ),
    "operators, an instance and a profiler's option": (
        """
torch._C._jit_get_schemas_for_operator = lambda name: []
del np.random.mtrand._rand, torch._C._profiler._ExperimentalConfig
""",
        ["numpy", "torch"],
        PROFILED,
    ),
}


@pytest.mark.parametrize(("taken", "lost", "then"), TAKEN.values(), ids=TAKEN)
def test_samples_draw_the_same_from_all_else_and_a_warning_says_what_is_lost(
    taken: str, lost: list[str], then: str
) -> None:
    code, out, complaints = run_child(PROGRAM.format(taken=taken, lost=lost) + then)
    assert code == 0, complaints
    same, told, outside, *profiled = out.splitlines()
    assert same == "True"
    assert told.count("sample_rng()") == len(lost)
    assert all(f"{name} " in told or f"{name}.random " in told for name in lost)
    assert outside == "True True True"
    assert profiled == ["True"] * bool(then)
