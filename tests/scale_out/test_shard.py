"""``shard=``: one order for all ranks, whatever their number, and a state that all can go on from.

Ranks are simulated, one after the other, by ``shard=(rank, world_size)``.
"""

from __future__ import annotations

import json
import random
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from threadloader import ThreadLoader

if TYPE_CHECKING:
    from collections.abc import Iterator

SAMPLES = 61


class Drawing:
    """Samples that draw from all kinds of random state."""

    def __init__(self, samples: int = SAMPLES) -> None:
        self.samples = samples

    def __len__(self) -> int:
        return self.samples

    def __getitem__(self, index: int) -> tuple[int, float, float]:
        return index, random.random(), np.random.rand()  # noqa: NPY002


def samples_of(batch: Any) -> list[tuple[Any, ...]]:
    return list(zip(*(part.tolist() for part in batch), strict=True))


class Striding:
    """A sampler of the user's, without a state."""

    def __iter__(self) -> Iterator[int]:
        return iter([index * 7 % SAMPLES for index in range(SAMPLES)])

    def __len__(self) -> int:
        return SAMPLES


class Counting(Striding):
    """A sampler of the user's whose iterator has a state."""

    def __iter__(self) -> Any:
        return CountingIterator()


class CountingIterator:
    def __init__(self) -> None:
        self.at = 0

    def __iter__(self) -> CountingIterator:
        return self

    def __next__(self) -> int:
        if self.at == SAMPLES:
            raise StopIteration
        self.at += 1
        return (self.at - 1) * 7 % SAMPLES

    def state_dict(self) -> dict[str, int]:
        return {"at": self.at}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.at = state["at"]


class Growing:
    """A batch sampler of the user's, whose batches have different sizes."""

    def __iter__(self) -> Iterator[list[int]]:
        start = 0
        for size in range(1, 11):
            yield list(range(start, start + size))
            start += size

    def __len__(self) -> int:
        return 10


ORDERS: dict[str, dict[str, Any]] = {
    "sequential": {},
    "shuffled": {"shuffle": True},
    "keyed": {"shuffle": "keyed"},
    "user's": {"sampler": Striding()},
    "user's with a state": {"sampler": Counting()},
    "user's batches": {"batch_sampler": Growing()},
}
each_order = pytest.mark.parametrize("order", list(ORDERS))


def options_of(order: str, batch_size: int) -> dict[str, Any]:
    options = {"dataset": Drawing(), "seed": 5, "output": "numpy", **ORDERS[order]}
    return options if "batch_sampler" in options else {**options, "batch_size": batch_size}


def steps_of(
    order: str,
    world_size: int,
    batch_size: int,
    *,
    state: dict[str, Any] | None = None,
    steps: int | None = None,
    **options: Any,
) -> tuple[list[list[tuple[Any, ...]]], dict[str, Any]]:
    """Return the global batches of some steps, and the state after them, which all ranks have."""
    ranks: list[list[list[tuple[Any, ...]]]] = []
    states = []
    for rank in range(world_size):
        given_options = {**options_of(order, batch_size), **options}
        with ThreadLoader(shard=(rank, world_size), **given_options) as loader:
            if state is not None:
                loader.load_state_dict(json.loads(json.dumps(state)))
            batches = []
            for batch in loader:
                batches.append(samples_of(batch))
                if len(batches) == steps:
                    break
            states.append(loader.state_dict())
            ranks.append(batches)
    longest = max(map(len, ranks))
    taken = [
        [sample for batches in ranks if step < len(batches) for sample in batches[step]]
        for step in range(longest)
    ]
    if options.get("uneven") != "short":
        assert all(state == states[0] for state in states)
    return taken, states[0]


def flat(steps: list[list[tuple[Any, ...]]]) -> list[tuple[Any, ...]]:
    return [sample for step in steps for sample in step]


@each_order
@pytest.mark.parametrize("threads", [0, 3])
@pytest.mark.parametrize("world_size", [2, 4, 8])
def test_all_ranks_together_load_what_one_loads(order: str, world_size: int, threads: int) -> None:
    one, _ = steps_of(order, 1, 2, threads=0)
    many, _ = steps_of(order, world_size, 2, threads=threads, uneven="short")
    assert sorted(flat(many)) == sorted(flat(one))
    if "batch" not in order:
        assert flat(many) == flat(one)


@each_order
@given(data=st.data())
@settings(max_examples=25)
def test_a_run_goes_on_with_any_number_of_ranks(order: str, data: st.DataObject) -> None:
    whole, _ = steps_of(order, 1, 3, threads=0)
    state, got, units = None, [], 0
    while data.draw(st.booleans()):
        world_size, batch_size = data.draw(st.integers(1, 4)), data.draw(st.integers(1, 4))
        step = world_size * (1 if "batch" in order else batch_size)
        left = (10 if "batch" in order else SAMPLES) - units
        if left < step:
            break
        steps = data.draw(st.integers(1, left // step))  # whole ones
        taken, state = steps_of(order, world_size, batch_size, state=state, steps=steps, threads=0)
        got += taken
        units += steps * step
    last = data.draw(st.integers(1, 4))
    taken, _ = steps_of(order, last, 2, state=state, uneven="short", threads=0)
    assert sorted(flat(got + taken)) == sorted(flat(whole))
