"""Batches of samples that hypothesis makes up: near misses of each other, in any nesting."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.patience import PATIENCE

from conformance.datasets import Samples, WholeBatches
from conformance.loading import THREADS, ours, story, torchs
from conformance.samples import BEYOND, ODD, PLAIN, Leaf, samples

if TYPE_CHECKING:
    from collections.abc import Callable
    from concurrent.futures import Future

TENSORS = (
    Leaf("float32 tensor (2,)", lambda n: torch.full((2,), float(n))),
    Leaf("float32 tensor (1,)", lambda n: torch.full((1,), float(n))),
    Leaf("float32 tensor ()", lambda n: torch.tensor(float(n))),
    Leaf("int64 tensor (2, 2) transposed", lambda n: torch.arange(n, n + 4).reshape(2, 2).T),
    Leaf("bfloat16 tensor (2,)", lambda n: torch.full((2,), n, dtype=torch.bfloat16)),
    Leaf("float32 tensor (2,) with grad", lambda n: torch.full((2,), float(n), requires_grad=True)),
    Leaf("Parameter (2,)", lambda n: torch.nn.Parameter(torch.full((2,), float(n)))),
)
LEAVES = (*PLAIN, *ODD, BEYOND, *TENSORS)

# `spawn` has no state that one example could leave to the next.
many = settings(
    max_examples=120,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)


@many
@given(data=st.data())
def test_generated_samples(data: st.DataObject, spawn: Callable[..., Future[Any]]) -> None:
    made = data.draw(samples(LEAVES))
    arguments = {
        "batch_size": data.draw(st.sampled_from([None, 1, 2, 3, 10])),
        "shuffle": bool(made) and data.draw(st.booleans()),
    }
    dataset = data.draw(st.sampled_from([Samples, WholeBatches]))(made)

    def build(loader: Callable[..., Any]) -> Any:
        return loader(dataset, **arguments)

    expected = spawn(story, build, torchs).result(PATIENCE)
    threads = data.draw(st.sampled_from(THREADS))
    assert spawn(story, build, ours(threads)).result(PATIENCE) == expected
