"""What a sample draws depends on its position in the epoch, and on no thread."""

from __future__ import annotations

import random
import sys
from collections.abc import Callable, Sequence
from random import gauss, randint, shuffle
from threading import Event
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.acting import Acting
from support.patience import PATIENCE, Spawn

from threadloader import ThreadLoader
from threadloader._worker.streams import sample_rng, sample_seed

Draw = Callable[[], Any]

pytestmark = pytest.mark.filterwarnings("ignore:an iterable that is no:UserWarning")

THREADS = (0, 2, 9)
legacy = np.random  # its old functions are what is tested
ranf, numpy_seed = legacy.ranf, legacy.seed  # which are no methods


def shuffled(shuffle: Callable[[list[int]], object]) -> list[int]:
    order = list(range(20))
    shuffle(order)
    return order


def seeded() -> float:
    numpy_seed(randint(0, 1 << 30))
    return float(legacy.rand())


# Those of torch: see tests/conformance/test_random.py.
DRAWS: dict[str, Draw] = {
    "random": lambda: random.random(),  # noqa: PLW0108  # the function of that moment
    "randint imported early": lambda: randint(0, 1 << 30),
    "gauss": lambda: gauss(0, 1),
    "shuffle": lambda: shuffled(shuffle),
    "randbytes": lambda: list(random.randbytes(4)),
    "np rand": lambda: legacy.rand(2),
    "np normal": lambda: legacy.normal(0, 1),
    "np shuffle": lambda: shuffled(legacy.shuffle),
    "np ranf": lambda: ranf(2),
    "np seed": seeded,
    "np _rand": lambda: legacy.mtrand._rand.random_sample(1),  # noqa: SLF001  # libraries do
    "sample_rng": lambda: sample_rng().integers(1 << 60, size=2),
    "sample_seed": sample_seed,
    "all at once": lambda: [random.random(), legacy.rand(), sample_rng().random()],
}

each_draw = pytest.mark.parametrize("draw", DRAWS.values(), ids=DRAWS)


class EpochDraws:
    """Sample ``i`` is its index, and what it draws after ``i % 3`` draws that are thrown away."""

    def __init__(self, draw: Draw, size: int = 24) -> None:
        self.draw = draw
        self.size = size

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, index: int) -> list[Any]:
        for _ in range(index % 3):
            self.draw()
        return [index, np.asarray(self.draw()).tolist()]


class WholeDraws(EpochDraws):
    def __getitems__(self, indices: Sequence[int]) -> list[Any]:
        first = np.asarray(self.draw()).tolist()
        return [[first, self[index]] for index in indices]


def as_given(samples: list[Any]) -> list[Any]:
    return samples


def flat(batches: list[Any]) -> list[Any]:
    return [row for batch in batches for row in batch]


def load(dataset: Any, threads: int, **arguments: Any) -> list[Any]:
    """Return the batches of one epoch."""
    defaults = {"batch_size": 5, "seed": 3, "collate_fn": as_given, "output": "numpy"}
    with ThreadLoader(dataset, threads=threads, **(defaults | arguments)) as loader:
        return list(loader)


@each_draw
@pytest.mark.parametrize("dataset", [EpochDraws, WholeDraws])
def test_batches_are_the_same_for_all_numbers_of_threads(
    dataset: type[EpochDraws], draw: Draw, spawn: Spawn
) -> None:
    expected = load(dataset(draw), 0, shuffle=True)
    for threads in THREADS[1:]:
        assert spawn(load, dataset(draw), threads).result(PATIENCE) != expected
        got = spawn(lambda n: load(dataset(draw), n, shuffle=True), threads).result(PATIENCE)
        assert got == expected, threads
    drawn = [str(row) for batch in expected for row in batch]
    assert len({row.partition(",")[2] for row in drawn}) == len(drawn)


OPTIONS: list[dict[str, Any]] = [
    *({}, {"batch_size": None, "collate_fn": None}, {"prefetch": 1}, {"prefetch": 9}),
    *({"persistent_workers": True}, {"dataset_copy": "shared"}, {"dataset_copy": "deep"}),
]


@settings(max_examples=60)
@given(
    st.integers(0, 40),
    st.integers(1, 12),
    st.integers(1, 9),
    st.sampled_from(OPTIONS),
    st.booleans(),
)
def test_a_sample_draws_the_same_whatever_the_batches_and_the_arguments(
    size: int, batch: int, threads: int, options: dict[str, Any], none: bool
) -> None:
    draws = EpochDraws(DRAWS["all at once"], size)
    threads = 0 if none and "persistent_workers" not in options else threads
    got = load(draws, threads, **{"batch_size": batch} | options)
    got = got if "batch_size" in options else flat(got)
    assert got == flat(load(draws, 0, batch_size=7))


@pytest.mark.parametrize("threads", [0, 1, 3])
@pytest.mark.parametrize("draw", [DRAWS["gauss"], DRAWS["np normal"]], ids=["gauss", "np normal"])
def test_the_second_of_a_pair_of_normal_values_is_not_kept_for_the_next_sample(
    draw: Draw, threads: int, spawn: Spawn
) -> None:
    class Pairs(EpochDraws):
        def __getitem__(self, index: int) -> Any:
            first = self.draw()
            return [index, first, self.draw()][: 2 + index % 2]

    once = load(Pairs(draw), threads, batch_size=24)[0]
    uneven = spawn(load, Pairs(lambda: [draw(), draw(), draw()][0]), threads).result(PATIENCE)
    assert [row[1] for row in once] == [row[1] for batch in uneven for row in batch]


@pytest.mark.parametrize("threads", [0, 1, 3])
def test_seeding_in_a_sample_changes_that_sample_only(threads: int, spawn: Spawn) -> None:
    other = random.Random(5).getstate()

    def meddle(index: int) -> None:
        if index % 4 == 1:
            random.seed(1)
            legacy.seed(1)
        elif index % 4 == 2:
            random.setstate(other)
            legacy.set_state(("MT19937", np.full(624, 3, np.uint32), 5))

    class Meddles(EpochDraws):
        def __getitem__(self, index: int) -> Any:
            meddle(index)
            return super().__getitem__(index)

    draw = DRAWS["all at once"]
    plain = flat(load(EpochDraws(draw), 0))
    meddled = flat(spawn(load, Meddles(draw), threads).result(PATIENCE))
    untouched = [at for at in range(24) if at % 4 in (0, 3)]
    assert [meddled[at] for at in untouched] == [plain[at] for at in untouched]
    assert meddled[1][1][0] == meddled[13][1][0] != plain[1][1][0]  # as seeded: 1 draw before


@pytest.mark.parametrize("inner", [0, 2])
def test_a_loader_in_a_sample_draws_what_the_sample_decides(inner: int, spawn: Spawn) -> None:
    class Nested(EpochDraws):
        def __getitem__(self, index: int) -> Any:
            before = random.random()
            loader = ThreadLoader(
                EpochDraws(self.draw, 4), 2, shuffle=True, threads=inner, collate_fn=as_given
            )
            with loader:
                return [index, before, list(loader), self.draw()]

    expected = load(Nested(DRAWS["all at once"], 8), 0)
    assert len({str(row[2]) for batch in expected for row in batch}) == 8
    for threads in (1, 2, 7):
        got = spawn(load, Nested(DRAWS["all at once"], 8), threads).result(PATIENCE)
        assert got == expected


@pytest.mark.parametrize("threads", [0, 2])
def test_sample_seeds_of_samples_and_epochs_do_not_collide(threads: int, spawn: Spawn) -> None:
    seeds_of = Acting(10_000, sample=lambda _: sample_seed())
    with ThreadLoader(seeds_of, 500, threads=threads, seed=0) as loader:
        epochs = [spawn(list, loader).result(PATIENCE) for _ in range(3)]
    seeds = [int(seed) for epoch in epochs for batch in epoch for seed in batch]
    assert len(set(seeds)) == 30_000
    assert min(seeds) >= 0
    assert max(seeds) < 1 << 63


def test_outside_of_a_loader_each_generator_and_seed_is_a_fresh_one() -> None:
    assert len({sample_seed() for _ in range(100)}) == 100
    assert len({sample_rng().random() for _ in range(100)}) == 100
    assert sample_rng() is not sample_rng()


# What is called in a sample gives what it gives anywhere


def in_a_sample(check: Callable[[], Any], threads: int) -> Any:
    return load(Acting(1, sample=lambda _: check()), threads)[0][0]


def draws(number: int = 12) -> list[Any]:
    values: list[Any] = [random.random() for _ in range(number)]
    values += [random.getrandbits(k) for k in (0, 1, 31, 32, 33, 64, 65, 300)]
    values += [random.gauss(0, 1), random.choice("abcdef"), random.sample(range(99), 9)]
    values += [float(legacy.rand()), float(legacy.normal()), int(legacy.randint(1 << 40))]
    return values


each_few_threads = pytest.mark.parametrize("threads", [0, 2])
each_number_before = pytest.mark.parametrize("before", [0, 1, 11, 12, 13])


@each_number_before
@each_few_threads
def test_a_state_that_is_taken_and_set_again_gives_the_same_numbers(
    before: int, threads: int, spawn: Spawn
) -> None:
    def check() -> bool:
        for _ in range(before):
            random.gauss(0, 1)
            legacy.normal()
        states = random.getstate(), legacy.get_state()
        assert states[1][1].tolist() == legacy.get_state()[1].tolist()
        first = draws(30)
        random.setstate(states[0])
        legacy.set_state(states[1])
        assert draws(30) == first
        own, own_legacy = random.Random(), legacy.RandomState()
        own.setstate(states[0])
        own_legacy.set_state(states[1])
        assert own.random() == first[0]
        legacy.set_state(states[1])
        return bool(own_legacy.normal() == legacy.normal())

    assert spawn(in_a_sample, check, threads).result(PATIENCE)


@pytest.mark.parametrize("threads", [0, 1, None])
def test_what_another_thread_draws_from_torch_is_its_own(threads: int | None, spawn: Spawn) -> None:
    torch = pytest.importorskip("torch")
    dataset = Acting(64, sample=lambda _: torch.rand(1))

    def load() -> list[Any]:
        loader = ThreadLoader(dataset, 4, threads=threads, seed=1, output="numpy")
        return [batch.tolist() for batch in loader]

    expected = load()
    ended = Event()

    def draw() -> list[float]:
        drawn: list[float] = []
        while not ended.is_set():
            drawn += torch.rand(1).tolist()
        return drawn

    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    torch.manual_seed(3)
    try:
        drawing = spawn(draw)
        assert all(load() == expected for _ in range(50))
    finally:
        ended.set()
        sys.setswitchinterval(before)
    drawn = drawing.result(PATIENCE)
    torch.manual_seed(3)
    assert drawn == [torch.rand(1).item() for _ in drawn]
