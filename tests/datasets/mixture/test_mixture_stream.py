"""MixtureStream: iterable sources by their weights, in replicas, and resumed."""

from __future__ import annotations

import json
from collections import Counter
from itertools import chain, islice
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from support.made_shards import write_numbered

from threadloader import StateError, ThreadLoader, get_worker_info
from threadloader.datasets import Mixture, MixtureStream, TarStream

try:
    from torch.utils.data import IterableDataset
except ImportError:
    from threadloader._torch import IterableDataset  # type: ignore[assignment]

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

MILLION = 10**6


class Counting(IterableDataset):  # type: ignore[type-arg]
    """Yields numbers; each worker every n-th."""

    def __init__(self, first: int, length: int) -> None:
        self.first, self.length = first, length

    def __iter__(self) -> Iterator[int]:
        info: Any = get_worker_info()
        worker, workers = (0, 1) if info is None else (info.id, info.num_workers)
        return iter(range(self.first + worker, self.first + self.length, workers))


class Stateful(Counting):
    """Its state is on itself, as that of Hugging Face's streams."""

    at: int = 0
    start: int = 0
    read = 0  # numbers, by all of them

    def __iter__(self) -> Iterator[int]:
        self.at, self.start = self.start, 0
        for number in islice(super().__iter__(), self.at, None):
            self.at += 1
            Stateful.read += 1
            yield number

    def state_dict(self) -> dict[str, int]:
        return {"at": self.at}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.start = state["at"]


class Sticky(Stateful):
    """A state that was loaded is where each pass begins, as with Hugging Face's streams."""

    def __iter__(self) -> Iterator[int]:
        self.at = self.start
        for number in islice(Counting.__iter__(self), self.at, None):
            self.at += 1
            yield number

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.start = self.at = state["at"]


class Plain:
    """An iterable of no class of torch's."""

    def __init__(self, first: int, length: int) -> None:
        self.first, self.length = first, length

    def __iter__(self) -> Iterator[int]:
        return iter(range(self.first, self.first + self.length))


class Sharded(Plain):
    """It can be asked for a part; each epoch begins elsewhere."""

    def shard(self, rank: int, world_size: int, epoch: int) -> Any:
        numbers = list(self)
        start = epoch % len(numbers)
        return (numbers[start:] + numbers[:start])[rank::world_size]


class MapStyle(Plain):
    __iter__ = None  # type: ignore[assignment]

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> int:
        if not 0 <= index < self.length:
            raise IndexError(index)
        return self.first + index


KINDS = [Counting, Stateful, Sticky, Plain, Sharded]
each_kind = pytest.mark.parametrize("kind", KINDS)


def stream(kind: Any, *lengths: int, weights: Any = (3, 1, 0.5), **options: Any) -> Any:
    sources = {
        "abc"[n]: ((kind if n != 2 else MapStyle)(MILLION * n, length), weights[n])
        for n, length in enumerate(lengths)
    }
    mixed: Any = Mixture(sources, **options)
    assert isinstance(mixed, MixtureStream)
    return mixed


def sources_of(samples: list[int]) -> Counter[int]:
    return Counter(sample // MILLION for sample in samples)


def batches(loader: Any) -> list[list[int]]:
    return [np.asarray(batch).tolist() for batch in loader]


# Of sources with 50, 300 and 20 samples, whose weights are 3, 1 and 0.5.
ENDS = {"first": (50, 17, 8), "all": (900, 300, 150), "once": (50, 300, 20), "repeat": (60, 20, 10)}


@each_kind
@pytest.mark.parametrize("stop", ENDS)
def test_a_pass_ends_where_the_user_chose(kind: Any, stop: str) -> None:
    options = {"length": 90} if stop == "repeat" else {}
    samples = list(stream(kind, 50, 300, 20, stop=stop, **options))
    for source, expected in enumerate(ENDS[stop]):
        assert abs(sources_of(samples)[source] - expected) <= 40
        times = Counter(sample for sample in samples if sample // MILLION == source).values()
        assert max(times) - min(times) <= 1
    if stop in ("first", "once"):
        assert max(Counter(samples).values()) == 1
    if stop in ("all", "once"):
        assert len(set(samples)) == 370


@each_kind
@pytest.mark.parametrize("workers", [1, 3])
def test_workers_share_each_source_and_the_length(kind: Any, workers: int) -> None:
    mixed = stream(kind, 51, 301, 20, stop="once")
    with ThreadLoader(mixed, 7, num_workers=workers) as loader:
        samples = list(chain.from_iterable(batches(loader)))
    assert sorted(samples) == sorted(stream(kind, 51, 301, 20, stop="once"))
    mixed = stream(kind, 50, 300, 20, stop="repeat", length=1001)
    with ThreadLoader(mixed, 10, num_workers=workers) as loader:
        assert sum(map(len, batches(loader))) == 1001


def test_ranks_share_map_style_and_plain_sources() -> None:
    parts = [
        list(stream(Plain, 50, 300, 20, stop="once", rank=rank, world_size=3)) for rank in range(3)
    ]
    assert sorted(chain.from_iterable(parts)) == sorted(stream(Plain, 50, 300, 20, stop="once"))


def test_an_epoch_has_another_pattern() -> None:
    mixed = stream(Counting, 50, 300, 20)
    first = list(mixed)
    assert list(mixed) == first
    mixed.set_epoch(1)
    assert list(mixed) != first


def test_a_source_that_can_be_asked_gets_another_epoch_in_each_pass() -> None:
    samples = list(stream(Sharded, 50, 300, weights=(1, 0), stop="repeat", length=150))
    assert samples[:50] == list(range(50))
    assert samples[50:100] == [*range(1, 50), 0]


@each_kind
@pytest.mark.parametrize("stop", ["first", "all", "once", "repeat"])
@pytest.mark.parametrize("workers", [0, 2])
def test_a_run_goes_on_in_the_middle_of_an_epoch(kind: Any, stop: Any, workers: int) -> None:
    def make() -> Any:
        mixed = stream(
            kind, 50, 100, 20, stop=stop, **({"length": 700} if stop == "repeat" else {})
        )
        mixed.set_epoch(2)
        return mixed

    with ThreadLoader(make(), 5, num_workers=workers) as loader:
        expected = batches(loader)
    for read in (1, 4, len(expected) // 2, len(expected) - 1):
        with ThreadLoader(make(), 5, num_workers=workers) as loader:
            iterator = iter(loader)
            for _ in range(read):
                next(iterator)
            state = json.loads(json.dumps(loader.state_dict()))
        with ThreadLoader(make(), 5, num_workers=workers) as loader:
            loader.load_state_dict(state)
            assert batches(loader) == expected[read:]


def test_a_source_with_a_state_is_not_read_again() -> None:
    mixed = stream(Stateful, 5000, 3000, 20, stop="repeat", length=10**6)
    iterator = iter(mixed)
    before = [next(iterator) for _ in range(2000)]
    assert before
    state = iterator.state_dict()
    expected = [next(iterator) for _ in range(500)]
    resumed = iter(stream(Stateful, 5000, 3000, 20, stop="repeat", length=10**6))
    resumed.load_state_dict(json.loads(json.dumps(state)))
    Stateful.read = 0
    assert [next(resumed) for _ in range(500)] == expected
    assert Stateful.read <= 500


@each_kind
def test_a_pass_after_the_one_that_was_resumed_is_whole(kind: Any) -> None:
    def make() -> Any:
        return stream(kind, 30, 40, 20, stop="repeat", length=1000)

    expected = list(make())
    first = iter(make())
    for _ in range(20):
        next(first)
    resumed = iter(make())
    resumed.load_state_dict(first.state_dict())
    assert resumed.state_dict() == first.state_dict()
    assert list(resumed) == expected[20:]


@each_kind
@pytest.mark.parametrize("left", [False, True])
def test_an_epoch_after_the_one_that_was_resumed_is_whole(kind: Any, left: bool) -> None:
    def make() -> Any:
        return stream(kind, 30, 400, 20, stop="repeat", length=100)

    with ThreadLoader(make(), 5, num_workers=2, persistent_workers=True) as loader:
        expected = batches(loader)
        iterator = iter(loader)
        for _ in range(7):
            next(iterator)
        state = loader.state_dict()
    with ThreadLoader(make(), 5, num_workers=2, persistent_workers=True) as loader:
        loader.load_state_dict(state)
        if left:
            next(iter(loader))
        else:
            assert batches(loader) == expected[7:]
        for _ in range(2):
            assert batches(loader) == expected


def test_shards_are_mixed_and_resumed(tmp_path: Path) -> None:
    for name, sizes in (("a", [5, 7, 3, 6]), ("b", [9, 2, 8])):
        (tmp_path / name).mkdir()
        write_numbered(tmp_path / name, sizes)

    def make() -> Any:
        sources = {
            name: (TarStream(tmp_path / name / "*.tar*", fields=("cls",), shuffle=4), weight)
            for name, weight in (("a", 2), ("b", 1))
        }
        return Mixture(sources, stop="repeat", length=200, with_source=True)

    def pairs(loader: Any) -> list[Any]:
        return [
            (np.asarray(samples[0]).tolist(), np.asarray(numbers).tolist())
            for samples, numbers in loader
        ]

    with ThreadLoader(make(), 5, num_workers=2, seed=3) as loader:
        expected = pairs(loader)
        second = pairs(loader)
    assert second != expected
    with ThreadLoader(make(), 5, num_workers=2, seed=3) as loader:
        iterator = iter(loader)
        for _ in range(17):
            next(iterator)
        state = loader.state_dict()
    with ThreadLoader(make(), 5, num_workers=2, seed=3) as loader:
        loader.load_state_dict(state)
        assert pairs(loader) == expected[17:]
    counts = Counter(chain.from_iterable(numbers for _, numbers in expected))
    assert abs(counts[0] - 133) < 15


@pytest.mark.parametrize("threads", [None, 1])
def test_shards_come_in_another_order_in_another_pass(tmp_path: Path, threads: int | None) -> None:
    write_numbered(tmp_path, [1] * 12)
    source = TarStream(tmp_path / "*.tar*", fields=("cls",), shuffle=1)
    mixed: Any = Mixture({"a": (source, 1)}, stop="repeat", length=24)
    if threads is None:
        samples = [sample[0] for sample in mixed]
    else:
        with ThreadLoader(mixed, 1, num_workers=threads, seed=5) as loader:
            samples = [int(batch[0][0]) for batch in loader]
    assert sorted(samples[:12]) == sorted(samples[12:]) == list(range(12))
    assert samples[:12] != samples[12:]


def test_weights_change_at_a_position_and_are_remembered() -> None:
    def make() -> Any:
        return stream(Counting, 50, 300, 20, stop="repeat", length=2000)

    mixed = make()
    plain = list(make())
    mixed.set_weights({"a": 0, "b": 1, "c": 0}, at=777)
    iterator = iter(mixed)
    samples = [next(iterator) for _ in range(500)]
    state = json.loads(json.dumps(iterator.state_dict()))
    samples += iterator
    assert samples[:777] == plain[:777]
    assert set(sources_of(samples[777:])) == {1}
    resumed = iter(make())
    resumed.load_state_dict(state)
    assert list(resumed) == samples[500:]


def test_a_source_without_a_sample_for_a_worker_is_told() -> None:
    mixed = stream(Counting, 1, 300, 20, stop="repeat", length=100)
    with (
        ThreadLoader(mixed, 5, num_workers=2) as loader,
        pytest.raises(ValueError, match="'a' has no sample for worker 1 of 2 of rank 0"),
    ):
        batches(loader)


def test_a_source_that_can_not_be_asked_is_refused_where_the_ranks_are_told() -> None:
    def load(shard: tuple[int, int], threads: int) -> list[Any]:
        mixture = Mixture({"alone": (Counting(0, 40), 1), "books": (range(40), 1)}, stop="once")
        options: dict[str, Any] = {"threads": threads, "shard": shard, "uneven": "short"}
        with ThreadLoader(mixture, batch_size=None, **options) as loader:
            return list(loader)

    with pytest.raises(TypeError, match="source 'alone' can't be asked for one of 4 parts"):
        load((1, 2), 2)
    assert sorted(load((0, 1), 2)) == sorted([*range(40), *range(40)])


def test_ranks_of_the_environment_are_known_to_a_source_that_can_not_be_asked(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    mixture = Mixture({"alone": (Counting(0, 40), 1)}, stop="once")
    loader = ThreadLoader(mixture, batch_size=None, threads=1, shard="auto", uneven="short")
    assert sorted(loader) == [*range(40)]  # it does not look at them


def test_an_iterator_is_refused() -> None:
    with pytest.raises(TypeError, match="'a' is an iterator"):
        Mixture({"a": (iter([1, 2]), 1)})


def test_a_stop_iteration_of_a_sample_does_not_end_its_source() -> None:
    class Stopping(MapStyle):
        def __getitem__(self, index: int) -> int:
            raise StopIteration

    mixed = Mixture({"a": (Plain(0, 5), 0), "b": (Stopping(0, 5), 1)})
    with pytest.raises(RuntimeError, match="source 'b' raised StopIteration"):
        list(mixed)


def test_the_state_of_another_stream_is_refused() -> None:
    state = iter(stream(Counting, 50, 300, 20)).state_dict()  # type: ignore[attr-defined]
    for other in (
        stream(Counting, 50, 300, 20, seed=1),
        stream(Counting, 50, 300, 20, weights=(1, 1, 1)),
    ):
        with pytest.raises(StateError, match="another mixture"):
            iter(other).load_state_dict(state)
    with pytest.raises(StateError, match="incomplete"):
        iter(stream(Counting, 50, 300, 20)).load_state_dict(  # type: ignore[attr-defined]
            {name: part for name, part in state.items() if name != "feeds"}
        )


def test_a_run_goes_on_with_a_new_source() -> None:
    old = iter(stream(Counting, 50, 300, stop="repeat", length=900))
    first = [next(old) for _ in range(300)]
    new = stream(Counting, 50, 300, 20, weights=(3, 1, 0), stop="repeat", length=900)
    new.set_weights({"a": 1, "b": 1, "c": 1}, at=400)
    resumed = iter(new)
    resumed.load_state_dict(old.state_dict())  # type: ignore[attr-defined]
    rest = list(resumed)
    assert rest[:100] == [next(old) for _ in range(100)]
    assert sources_of(rest[100:])[2] > 100
    assert len(first) + len(rest) == 900
