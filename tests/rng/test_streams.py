"""What a sample draws depends on its position in the epoch, and on no thread."""

from __future__ import annotations

import random
from random import choices, gauss, randint, sample, shuffle, uniform
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.patience import PATIENCE

from threadloader import ThreadLoader
from threadloader._rng.seeds import epoch_seed
from threadloader._rng.streams import SampleStream, WorkerStream, sample_rng, sample_seed

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from support.patience import Spawn

    Draw = Callable[[], Any]

pytestmark = pytest.mark.filterwarnings("ignore:an iterable that is no:UserWarning")

THREADS = (0, 1, 2, 7, 32)
legacy = np.random  # its old functions are what is tested


def shuffled(shuffle: Callable[[list[int]], object]) -> list[int]:
    order = list(range(20))
    shuffle(order)
    return order


def seeded() -> float:
    legacy.seed(randint(0, 1 << 30))
    return float(legacy.rand())


DRAWS: dict[str, Draw] = {
    "random": lambda: random.random(),  # noqa: PLW0108  # the function of that moment
    "getrandbits": lambda: random.getrandbits(30),
    "randint imported early": lambda: randint(0, 1 << 30),
    "uniform imported early": lambda: uniform(-1, 1),
    "gauss": lambda: gauss(0, 1),
    "choices": lambda: choices(range(1000), k=4),
    "shuffle": lambda: shuffled(shuffle),
    "sample": lambda: sample(range(1000), 4),
    "normalvariate": lambda: random.normalvariate(0, 1),
    "betavariate": lambda: random.betavariate(1, 2),
    "randbytes": lambda: list(random.randbytes(4)),
    "np rand": lambda: legacy.rand(2),
    "np randn": lambda: legacy.randn(3),
    "np randint": lambda: legacy.randint(0, 1 << 30, 2),
    "np normal": lambda: legacy.normal(0, 1),
    "np permutation": lambda: legacy.permutation(20),
    "np shuffle": lambda: shuffled(legacy.shuffle),
    "np choice": lambda: legacy.choice(1000, 3, replace=False),
    "np random": lambda: legacy.random(1),
    "np random_sample": lambda: legacy.random_sample(2),
    "np sample": lambda: legacy.sample(2),
    "np ranf": lambda: legacy.ranf(2),
    "np uniform": lambda: legacy.uniform(-1, 1),
    "np multivariate_normal": lambda: legacy.multivariate_normal([0, 1], [[1, 0], [0, 1]]),
    "np bytes": lambda: list(legacy.bytes(4)),
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


@each_draw
def test_a_collate_function_draws_the_same_for_all_numbers_of_threads(
    draw: Draw, spawn: Spawn
) -> None:
    def collate(samples: list[Any]) -> Any:
        return len(samples), np.asarray(draw()).tolist()

    expected = load(range(24), 0, collate_fn=collate)
    assert len({str(batch) for batch in expected}) == len(expected)
    for threads in THREADS[1:]:
        future = spawn(lambda n: load(range(24), n, collate_fn=collate), threads)
        assert future.result(PATIENCE) == expected


@each_draw
def test_a_transform_draws_the_same_for_all_numbers_of_threads(draw: Draw, spawn: Spawn) -> None:
    def transform(row: int) -> Any:
        return row, np.asarray(draw()).tolist()

    expected = load(iter(range(24)), 0, transform=transform)
    for threads in (1, 2, 5):
        future = spawn(lambda n: load(iter(range(24)), n, transform=transform), threads)
        assert future.result(PATIENCE) == expected
    assert len({str(value) for batch in expected for _, value in batch}) == 24


def test_an_iterable_and_its_transform_draw_from_different_streams(spawn: Spawn) -> None:
    class Reads:
        def __iter__(self) -> Iterator[float]:
            for _ in range(11):
                yield random.random()

    def epoch(threads: int) -> list[Any]:
        return load(Reads(), threads, transform=lambda row: (row, random.random()))

    expected = spawn(epoch, 0).result(PATIENCE)
    assert len({value for batch in expected for row in batch for value in row}) == 22
    for threads in (1, 2, 5):
        assert spawn(epoch, threads).result(PATIENCE) == expected


@pytest.mark.parametrize(
    "arguments",
    [
        {"batch_size": None, "collate_fn": None},
        {"batch_size": 1},
        {"prefetch": 1},
        {"prefetch": 9},
        {"persistent_workers": True},
        {"dataset_copy": "shared"},
        {"dataset_copy": "deep"},
    ],
    ids=str,
)
def test_no_argument_changes_what_a_sample_draws(arguments: dict[str, Any], spawn: Spawn) -> None:
    def rows(threads: int, **arguments: Any) -> list[Any]:
        loaded = load(EpochDraws(DRAWS["random"]), threads, **arguments)
        return loaded if "collate_fn" in arguments else flat(loaded)

    expected = rows(0)
    for threads in (1, 3):
        assert spawn(lambda n: rows(n, **arguments), threads).result(PATIENCE) == expected


def test_out_of_order_only_the_order_differs(spawn: Spawn) -> None:
    expected = load(EpochDraws(DRAWS["random"]), 0, shuffle=True)
    for threads in (1, 3, 7):
        got = spawn(
            lambda n: load(EpochDraws(DRAWS["random"]), n, shuffle=True, in_order=False), threads
        ).result(PATIENCE)
        assert sorted(got) == sorted(expected)


@settings(max_examples=40)
@given(size=st.integers(0, 40), batch=st.integers(1, 12), threads=st.integers(0, 9))
def test_a_sample_draws_the_same_in_batches_of_any_size(
    size: int, batch: int, threads: int
) -> None:
    expected = flat(load(EpochDraws(DRAWS["all at once"], size), 0, batch_size=7))
    got = load(EpochDraws(DRAWS["all at once"], size), threads, batch_size=batch)
    assert flat(got) == expected


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


@pytest.mark.parametrize("threads", [0, 1, 3])
def test_an_error_does_not_shift_what_later_samples_draw(threads: int, spawn: Spawn) -> None:
    class Fails(EpochDraws):
        def __getitem__(self, index: int) -> Any:
            row = super().__getitem__(index)
            if index == 7:
                raise LookupError(index)
            return row

    def outcomes(dataset: Any) -> list[Any]:
        told: list[Any] = []
        with ThreadLoader(dataset, 5, threads=threads, seed=3, collate_fn=as_given) as loader:
            iterator = iter(loader)
            for _ in range(5):
                try:
                    told.append(next(iterator))
                except LookupError:
                    told.append(None)
        return told

    draw = DRAWS["all at once"]
    expected = load(EpochDraws(draw), 0)
    expected[1] = None
    assert spawn(outcomes, Fails(draw)).result(PATIENCE) == expected


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
    class Seeds(EpochDraws):
        def __getitem__(self, _: int) -> int:
            return sample_seed()

    with ThreadLoader(Seeds(sample_seed, 10_000), 500, threads=threads, seed=0) as loader:
        epochs = [spawn(list, loader).result(PATIENCE) for _ in range(3)]
    seeds = [int(seed) for epoch in epochs for batch in epoch for seed in batch]
    assert len(set(seeds)) == 30_000
    assert min(seeds) >= 0
    assert max(seeds) < 1 << 63


def test_sample_seed_is_the_same_whenever_a_sample_asks(spawn: Spawn) -> None:
    class Twice(EpochDraws):
        def __getitem__(self, _: int) -> Any:
            first = sample_seed()
            self.draw()
            return first == sample_seed()

    batches = spawn(load, Twice(DRAWS["all at once"]), 2).result(PATIENCE)
    assert all(flat(batches))


def test_outside_of_a_loader_each_generator_and_seed_is_a_fresh_one() -> None:
    assert len({sample_seed() for _ in range(100)}) == 100
    assert len({sample_rng().random() for _ in range(100)}) == 100
    assert sample_rng() is not sample_rng()


GENERATORS: dict[str, Callable[[SampleStream], int]] = {
    "seed": lambda stream: stream.seed(),
    "random": lambda stream: stream.random_generator.getrandbits(64),
    "legacy": lambda stream: int(stream.legacy_generator.randint(1 << 63, dtype=np.uint64)),
    "numpy": lambda stream: int(stream.numpy_generator.integers(1 << 63)),
}


@pytest.mark.parametrize("generator", GENERATORS.values(), ids=GENERATORS)
def test_first_draws_of_positions_do_not_collide(generator: Callable[[Any], int]) -> None:
    stream = SampleStream()
    counted: list[None] = []
    drawn = set()
    stream.move(9, b"sample", 0, counted)
    for _ in range(20_000):
        drawn.add(generator(stream))
        counted.append(None)
    assert len(drawn) == 20_000


@settings(max_examples=30)
@given(seed=st.integers(0, (1 << 63) - 1), first=st.integers(0, 1 << 40), skip=st.integers(0, 9))
def test_a_stream_is_the_same_however_its_position_was_reached(
    seed: int, first: int, skip: int
) -> None:
    straight, counting = SampleStream(), SampleStream()
    straight.move(seed, b"sample", first + skip, ())
    counted: list[None] = []
    counting.move(seed, b"sample", first, counted)
    for _ in range(skip):
        counting.random_generator.gauss(0, 1)
        counting.legacy_generator.normal()
        counting.numpy_generator.integers(7, dtype=np.uint32)  # keeps half of a word
        counted.append(None)
    for draw in GENERATORS.values():
        assert draw(straight) == draw(counting)


def test_samples_batches_and_epochs_have_keys_of_their_own() -> None:
    stream = SampleStream()
    seeds = set()
    for kind in (b"sample", b"batch"):
        for seed in range(50):
            for position in range(50):
                stream.move(seed, kind, position, ())
                seeds.add(stream.seed())
    seeds |= {epoch_seed(seed, epoch) for seed in range(50) for epoch in range(50)}
    assert len(seeds) == 3 * 2_500


def test_workers_differ_from_each_other() -> None:
    streams = [WorkerStream(77, number) for number in range(100)]
    assert len({stream.random_generator.random() for stream in streams}) == 100
    assert len({stream.legacy_generator.rand() for stream in streams}) == 100
    assert len({stream.numpy_generator.random() for stream in streams}) == 100
