"""Whatever hypothesis makes up: near misses of samples, arrays and their subsets, in any order."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.patience import PATIENCE, Spawn
from torch.utils.data import Subset, TensorDataset

from conformance.datasets import Samples, WholeBatches
from conformance.loading import THREADS, kinds, ours, story, torchs
from conformance.samples import BEYOND, ODD, PLAIN, Leaf, samples
from threadloader.datasets import ArrayDataset

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
DTYPES = [
    *(torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64),
    *(torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.complex64),
]

# `spawn` has no state that one example could leave to the next.
many = settings(
    max_examples=120,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)


@st.composite
def parts(draw: st.DrawFn, size: int) -> Any:
    """Return a tensor or an array of ``size`` rows, somehow in memory."""
    shape = (size, *draw(st.lists(st.integers(0, 3), max_size=2)))
    dtype = draw(st.sampled_from(DTYPES))
    made = torch.arange(int(np.prod(shape))).reshape(shape).to(dtype)
    way = draw(st.sampled_from(["as it is", "strided", "turned", "array"]))
    if way == "strided":
        return made.repeat_interleave(2, 0)[::2]
    if way == "turned" and made.ndim > 1:
        return made.transpose(0, 1).contiguous().transpose(0, 1)
    return made.numpy() if way == "array" and dtype is not torch.bfloat16 else made


STRUCTURES: dict[str, Callable[[list[Any]], Any]] = {
    "bare": lambda made: made[0],
    "TensorDataset": lambda made: TensorDataset(*map(torch.as_tensor, made)),
    "ArrayDataset": lambda made: ArrayDataset(*made),
    "dict": lambda made: ArrayDataset(dict(enumerate(made))),
}


@st.composite
def arrays(draw: st.DrawFn) -> Any:
    size = draw(st.integers(1, 20))
    made = draw(st.lists(parts(size), min_size=1, max_size=3))
    dataset = STRUCTURES[draw(st.sampled_from(sorted(STRUCTURES)))](made)
    for _ in range(draw(st.integers(0, 2))):
        indices = draw(st.lists(st.integers(-size - 1, size), min_size=1, max_size=9))
        how = draw(st.sampled_from([list, tuple, np.array, torch.tensor]))
        dataset = Subset(dataset, how(indices))
    return dataset


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
    kind = data.draw(st.sampled_from([Samples, WholeBatches, None]))
    dataset = data.draw(arrays()) if kind is None else kind(data.draw(samples(LEAVES)))
    arguments = data.draw(orders(len(dataset)))
    seed = data.draw(st.sampled_from([None, 3]), "generator")
    threads = data.draw(st.sampled_from(THREADS))

    def build(loader: Callable[..., Any]) -> Any:
        generator = None if seed is None else torch.Generator().manual_seed(seed)
        return loader(dataset, generator=generator, **arguments)

    expected = spawn(story, build, torchs).result(PATIENCE)
    told = spawn(story, build, ours(threads)).result(PATIENCE)
    # Of several indices out of range torch may name another: of nested subsets the outer one's.
    assert (told == expected) if kind else (kinds(told) == kinds(expected))
