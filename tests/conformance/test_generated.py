"""Whatever hypothesis makes up: near misses of samples, in any order."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.patience import PATIENCE, Spawn

from conformance.datasets import Samples, WholeBatches
from conformance.loading import THREADS, ours, story, torchs
from conformance.samples import BEYOND, ODD, PLAIN, Leaf, samples

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
    max_examples=80,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)


@st.composite
def orders(draw: st.DrawFn, size: int) -> dict[str, Any]:
    if draw(st.booleans()):
        drawn = st.lists(st.lists(st.integers(-size - 1, size), max_size=5), max_size=4)
        return {"batch_sampler": draw(drawn)}
    batch_size = draw(st.sampled_from([None, 1, 2, 3, 7, 20, 50]))
    return {
        "shuffle": size > 0 and draw(st.booleans()),
        "batch_size": batch_size,
        "drop_last": batch_size is not None and draw(st.booleans()),
    }


@many
@given(data=st.data())
def test_any_samples_in_any_order(data: st.DataObject, spawn: Spawn) -> None:
    dataset = data.draw(st.sampled_from([Samples, WholeBatches]))(data.draw(samples(LEAVES)))
    arguments = data.draw(orders(len(dataset)))
    seed = data.draw(st.sampled_from([None, 3]), "generator")
    threads = data.draw(st.sampled_from(THREADS))

    def build(loader: Callable[..., Any]) -> Any:
        generator = None if seed is None else torch.Generator().manual_seed(seed)
        return loader(dataset, generator=generator, **arguments)

    expected = spawn(story, build, torchs).result(PATIENCE)
    assert spawn(story, build, ours(threads)).result(PATIENCE) == expected
