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

from threadloader import StateError, ThreadLoader
from threadloader.datasets import ArrayDataset

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


@each_order
@pytest.mark.parametrize("world_size", [3, 8])
def test_without_padding_no_sample_comes_twice_and_all_ranks_have_the_same_steps(
    order: str, world_size: int
) -> None:
    ranks = [
        list(
            ThreadLoader(**options_of(order, 4), shard=(rank, world_size), uneven="drop", threads=0)
        )
        for rank in range(world_size)
    ]
    assert len({len(batches) for batches in ranks}) == 1
    assert all(
        len({len(batch[0]) for batch in step}) == 1 for step in zip(*ranks, strict=True)
    ) or ("batch" in order)
    got = [sample for batches in ranks for batch in batches for sample in samples_of(batch)]
    whole = flat(steps_of(order, 1, 4, threads=0)[0])
    assert len(set(got)) == len(got)
    assert set(got) <= set(whole)
    left_out = SAMPLES % world_size if "batch" not in order else 10 % world_size * 10
    assert len(whole) - len(got) <= left_out


@each_order
@pytest.mark.parametrize("world_size", [3, 8])
def test_padding_repeats_few_samples_and_draws_anew_for_them(order: str, world_size: int) -> None:
    ranks = [
        list(ThreadLoader(**options_of(order, 4), shard=(rank, world_size), threads=0))
        for rank in range(world_size)
    ]
    assert len({len(batches) for batches in ranks}) == 1
    got = [sample for batches in ranks for batch in batches for sample in samples_of(batch)]
    assert {index for index, *_ in got} == set(range(55 if "batch" in order else SAMPLES))
    if "batch" not in order:
        assert len(got) == -(-SAMPLES // world_size) * world_size
        assert len(set(got)) == len(got)


@pytest.mark.parametrize("uneven", ["drop", "pad", "short"])
@pytest.mark.parametrize("drop_last", [False, True])
@pytest.mark.parametrize(("samples", "batch_size"), [(0, 2), (3, 1), (16, 2), (17, 2), (61, 4)])
def test_the_length_is_the_number_of_steps(
    uneven: Any, drop_last: bool, samples: int, batch_size: int
) -> None:
    for world_size in (1, 2, 5, 8):
        for rank in range(world_size):
            loader = ThreadLoader(
                range(samples),
                batch_size,
                drop_last=drop_last,
                shard=(rank, world_size),
                uneven=uneven,
                threads=0,
            )
            assert len(loader) == len(list(loader))


def test_a_last_batch_that_is_not_whole_is_left_out_by_all() -> None:
    got = [
        np.concatenate(
            list(
                ThreadLoader(
                    range(30), 4, drop_last=True, shard=(rank, 2), output="numpy", threads=2
                )
            )
        )
        for rank in range(2)
    ]
    assert sorted(np.concatenate(got).tolist()) == list(range(24))


@pytest.mark.parametrize("threads", [0, 2])
def test_arrays_are_shared_out_as_other_data(threads: int) -> None:
    data = ArrayDataset(np.arange(100) * 10)
    for shuffle in (False, True, "keyed"):
        steps: list[Any] = [
            list(
                ThreadLoader(
                    data, 4, shuffle=shuffle, seed=1, shard=(rank, 3), output="numpy",
                    uneven="short", threads=threads,
                )
            )
            for rank in range(3)
        ]  # fmt: skip
        got = np.concatenate([np.ravel(batch) for batches in steps for batch in batches])
        assert sorted(got.tolist()) == [10 * index for index in range(100)]


def test_single_samples_are_shared_out() -> None:
    got = [
        list(ThreadLoader(range(10), batch_size=None, shard=(rank, 3), uneven="short", threads=0))
        for rank in range(3)
    ]
    assert got == [[0, 3, 6, 9], [1, 4, 7], [2, 5, 8]]


def test_ranks_draw_different_numbers_also_in_the_collate_function() -> None:
    def collate(_: list[Any]) -> float:
        return random.random()

    drawn = [
        list(
            ThreadLoader(range(32), 2, collate_fn=collate, seed=1, shard=(rank, 4), threads=threads)
        )
        for rank in range(4)
        for threads in (0, 3)
    ]
    assert drawn[::2] == drawn[1::2]
    assert len({number for rank in drawn for number in rank}) == 16


@each_order
def test_a_state_is_small(order: str) -> None:
    _, state = steps_of(order, 2, 3, steps=2, threads=0)
    assert len(json.dumps(state)) < 500


def test_a_billion_samples_resume_at_once_with_another_number_of_ranks() -> None:
    class Samples:
        def __len__(self) -> int:
            return 10**9

        def __getitem__(self, index: int) -> int:
            return index

    options: dict[str, Any] = {"shuffle": "keyed", "seed": 3, "threads": 0, "output": "numpy"}
    loader = ThreadLoader(Samples(), 500, shard=(1, 2), **options)
    next(iter(loader))
    state = loader.state_dict()
    state["lanes"][0]["batches"] = 600_000  # 600 million samples
    one = ThreadLoader(Samples(), 500, shard=(1, 2), **options)
    one.load_state_dict(state)
    many = [ThreadLoader(Samples(), 250, shard=(rank, 4), **options) for rank in (2, 3)]
    for each in many:
        each.load_state_dict(state)
    halves = [next(iter(each)) for each in many]
    assert next(iter(one)).tolist() == np.concatenate(halves).tolist()


def test_a_state_of_one_process_that_loads_all_is_as_good() -> None:
    options: dict[str, Any] = {**options_of("shuffled", 4), "threads": 0}
    whole = [sample for batch in ThreadLoader(**options) for sample in samples_of(batch)]
    loader = ThreadLoader(**options)
    iterator = iter(loader)
    got = [sample for _ in range(3) for sample in samples_of(next(iterator))]
    state = loader.state_dict()
    taken, _ = steps_of("shuffled", 3, 2, state=state, uneven="short", threads=0)
    assert got + flat(taken) == whole
    sharded = ThreadLoader(**options, shard=(0, 1))
    next(iter(sharded))
    with pytest.raises(StateError, match=r"shard=\(0, 1\)"):
        loader.load_state_dict(sharded.state_dict())


def test_later_epochs_are_the_same_for_any_number_of_ranks() -> None:
    def epochs(world_size: int) -> list[list[tuple[Any, ...]]]:
        loaders = [
            ThreadLoader(
                **options_of("shuffled", 2), shard=(rank, world_size), uneven="short", threads=0
            )
            for rank in range(world_size)
        ]
        return [
            sorted(sample for loader in loaders for batch in loader for sample in samples_of(batch))
            for _ in range(3)
        ]

    one = epochs(1)
    assert one == epochs(3)
    assert one[0] != one[1]


def test_a_batch_that_other_ranks_have_is_not_left_out() -> None:
    class Broken(Drawing):
        def __getitem__(self, index: int) -> Any:
            if 4 <= index < 8:
                raise KeyError(index)
            return index

    loader = ThreadLoader(Broken(16), 4, shard=(1, 2), on_error="skip", threads=0)
    with pytest.raises(KeyError) as caught:
        list(loader)
    assert any("other ranks have a batch" in note for note in caught.value.__notes__)


@pytest.mark.parametrize(
    ("shard", "error"),
    [
        ("rank", ValueError),
        ((2, 2), ValueError),
        ((-1, 2), ValueError),
        ((0, 0), ValueError),
        ((0, 1, 2), TypeError),
        (3, TypeError),
        (("a", "b"), TypeError),
    ],
)
def test_what_is_no_share_is_refused(shard: Any, error: type[Exception]) -> None:
    with pytest.raises(error):
        ThreadLoader(range(3), shard=shard)


def test_batches_out_of_order_are_no_global_batches() -> None:
    with pytest.raises(ValueError, match="in_order=True"):
        ThreadLoader(range(3), shard=(0, 2), threads=2, in_order=False)


def test_another_word_for_uneven_is_refused() -> None:
    with pytest.raises(ValueError, match="uneven must be one of drop, pad, short"):
        ThreadLoader(range(3), uneven="join")  # type: ignore[arg-type]


def test_an_order_that_ranks_would_draw_differently_is_refused() -> None:
    loader = ThreadLoader(range(30), 2, shuffle=True, shard=(0, 2))
    with pytest.raises(ValueError, match="needs seed="):
        iter(loader)


def test_the_environment_says_which_rank_this_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "3")
    loader: ThreadLoader[Any] = ThreadLoader(range(12), 2, shard="auto", output="numpy", threads=0)
    assert [batch.tolist() for batch in loader] == [[2, 3], [8, 9]]


def test_variables_of_slurm_are_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("RANK", "WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("SLURM_PROCID", "1")  # as in a shell within an allocation
    monkeypatch.setenv("SLURM_NTASKS", "3")
    loader: ThreadLoader[Any] = ThreadLoader(range(4), 2, shard="auto", output="numpy", threads=0)
    assert [batch.tolist() for batch in loader] == [[0, 1], [2, 3]]


class Mesh:
    """Has what is used of torch's ``DeviceMesh``."""

    def __init__(self, ndim: int = 1) -> None:
        self.ndim = ndim

    def get_local_rank(self) -> int:
        return 2

    def size(self) -> int:
        return 3


def test_a_mesh_says_which_share_is_loaded() -> None:
    loader: ThreadLoader[Any] = ThreadLoader(range(12), 2, shard=Mesh(), output="numpy", threads=0)
    assert [batch.tolist() for batch in loader] == [[4, 5], [10, 11]]
    with pytest.raises(TypeError, match="one dimension of a mesh"):
        ThreadLoader(range(12), shard=Mesh(2))
