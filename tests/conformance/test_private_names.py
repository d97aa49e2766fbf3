"""Each private name in the table of ``docs/design.md`` is taken away: what is left goes on."""

from __future__ import annotations

import pytest
from support.child import run_child

PROGRAM = """
import warnings
import random, numpy as np, torch
{taken}
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
        del drawn["{lost}"]
        return drawn

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

TAKEN = {
    "a dispatch key is not included": (
        "del torch._C._dispatch_tls_set_dispatch_key_included",
        "torch",
    ),
    "operators are not found": (
        "torch._C._jit_get_schemas_for_operator = lambda name: []",
        "torch",
    ),
    "random has no instance": ("del random._inst", "random"),
    "numpy.random has no instance": ("del np.random.mtrand._rand", "numpy"),
}


@pytest.mark.parametrize(("taken", "lost"), TAKEN.values(), ids=TAKEN)
def test_samples_draw_the_same_from_all_else_and_a_warning_says_what_is_lost(
    taken: str, lost: str
) -> None:
    code, out, complaints = run_child(PROGRAM.format(taken=taken, lost=lost))
    assert code == 0, complaints
    same, told, outside = out.splitlines()
    assert same == "True"
    assert told.count("sample_rng()") == 1
    assert f"{lost} " in told or f"{lost}.random " in told
    assert outside == "True True True"


def test_a_profile_goes_on_without_the_option_for_all_threads() -> None:
    script = """
import torch
del torch._C._profiler._ExperimentalConfig
import threadloader
with threadloader.profile() as profile:
    list(threadloader.ThreadLoader(range(8), 2, threads=1))
print(any("threadloader" in event.key for event in profile.key_averages()))
"""
    code, out, complaints = run_child(script)
    assert (code, out) == (0, "True"), complaints
