"""What is done where torch lacks the names that random operators are redirected by."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import torch
from support.patience import PATIENCE

import threadloader
from threadloader._rng import streams
from threadloader._torch.random_mode import OperatorsByMode

if TYPE_CHECKING:
    from collections.abc import Callable

ONES = torch.ones(3)
DRAWS: dict[str, Callable[[], torch.Tensor]] = {
    "rand": lambda: torch.rand(3),
    "randn": lambda: torch.randn(3, device="cpu"),
    "randint": lambda: torch.randint(1 << 40, (3,)),
    "randperm": lambda: torch.randperm(100),
    "rand_like": lambda: torch.rand_like(ONES),
    "normal": lambda: torch.normal(ONES, 1.0),
    "bernoulli": lambda: torch.bernoulli(torch.full((64,), 0.5)),
    "multinomial": lambda: torch.multinomial(torch.ones(100), 9),
    "poisson": lambda: torch.poisson(ONES * 1e6),
    "uniform_": lambda: torch.empty(3).uniform_(),
    "normal_": lambda: torch.empty(3).normal_(),
    "random_": lambda: torch.empty(3).random_(),
    "exponential_": lambda: torch.empty(3).exponential_(),
}


@pytest.mark.parametrize("name", DRAWS)
def test_a_function_draws_from_the_sample_s_stream_alone(name: str) -> None:
    if name == "rand_like" and torch.__version__ < "2.10":
        pytest.skip("takes no generator before torch 2.10")
    operators = OperatorsByMode(streams.here)
    stream = streams.WorkerStream(3, 0)

    def draw(position: int) -> Any:
        streams.enter_sample_streams(1, position, ())
        return DRAWS[name]().tolist()

    state = torch.get_rng_state()
    with streams.drawing_from(stream), operators.redirecting():
        first, second, again = draw(0), draw(1), draw(0)
    assert torch.equal(state, torch.get_rng_state())
    assert first == again != second


def test_a_generator_that_is_given_is_used() -> None:
    given = torch.Generator().manual_seed(5)
    with (
        streams.drawing_from(streams.WorkerStream(3, 0)),
        OperatorsByMode(streams.here).redirecting(),
    ):
        drawn = torch.rand(2, generator=given)
    assert torch.equal(drawn, torch.rand(2, generator=torch.Generator().manual_seed(5)))


@pytest.mark.parametrize(
    "broken",
    [
        "del torch._C._dispatch_tls_set_dispatch_key_included",
        "torch._C._jit_get_schemas_for_operator = lambda name: []",
    ],
)
def test_it_stands_in_with_a_warning_where_a_name_is_missing_or_does_nothing(broken: str) -> None:
    program = f"""
import warnings
import torch
{broken}
with warnings.catch_warnings(record=True) as told:
    warnings.simplefilter("always")
    from threadloader import ThreadLoader
    next(iter(ThreadLoader([[0]])))
print([str(warning.message)[:5] for warning in told if "redirected" in str(warning.message)])
class EpochDraws:
    def __len__(self): return 6
    def __getitem__(self, index): return torch.rand(2)
def batches(threads):
    return [batch.tolist() for batch in ThreadLoader(EpochDraws(), 2, threads=threads, seed=1)]
print(batches(0) == batches(1) == batches(3))
"""
    done = subprocess.run(  # our own program
        [sys.executable, "-c", program],
        cwd=Path(threadloader.__file__).parents[1],
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ["['torch']", "True"]
