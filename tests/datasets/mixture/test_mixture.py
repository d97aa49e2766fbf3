"""Mixture: datasets as one, each by its weight, as samples by position or as a stream."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from itertools import chain, islice
from typing import Any

import numpy as np
import pytest
from support.resuming import Cursor, as_json, check_each_state

from threadloader import StateError, ThreadLoader, get_worker_info
from threadloader.datasets import Mixture, MixtureStream

try:
    from torch.utils.data import IterableDataset
except ImportError:
    from threadloader._torch import IterableDataset  # type: ignore[assignment]


MILLION = 10**6


class MapStyle:
    """Sample ``i`` is ``first + i``."""

    def __init__(self, first: int, length: int) -> None:
        self.first, self.length = first, length

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> int:
        if not 0 <= index < self.length:
            raise IndexError(index)
        return self.first + index


class Whole(MapStyle):
    """It counts calls for several samples."""

    calls = 0

    def __getitems__(self, indices: list[int]) -> list[int]:
        type(self).calls += 1
        return [self[index] for index in indices]


class Plain:
    """An iterable of no class of torch's."""

    def __init__(self, first: int, length: int) -> None:
        self.first, self.length = first, length

    def __iter__(self) -> Iterator[int]:
        return iter(range(self.first, self.first + self.length))


class Sharded(Plain):
    """It can be asked for a part, which has a state; each epoch begins elsewhere."""

    def shard(self, rank: int, world_size: int, epoch: int) -> Any:
        numbers = list(self)
        start = epoch % len(numbers)
        return Cursor((numbers[start:] + numbers[:start])[rank::world_size])


class Counting(IterableDataset):  # type: ignore[type-arg]
    """Yields numbers; each worker every n-th."""

    def __init__(self, first: int, length: int) -> None:
        self.first, self.length = first, length

    def __iter__(self) -> Iterator[int]:
        info: Any = get_worker_info()
        worker, workers = (0, 1) if info is None else (info.id, info.num_workers)
        return iter(range(self.first + worker, self.first + self.length, workers))


class Stateful(Counting):
    """Its state is on itself, and counts for one pass."""

    at = start = 0
    sticky = False  # a state that was loaded is where each pass begins, as Hugging Face has it
    read = 0  # numbers, by all of them

    def __iter__(self) -> Iterator[int]:
        self.at = self.start
        if not self.sticky:
            self.start = 0
        for number in islice(super().__iter__(), self.at, None):
            self.at += 1
            Stateful.read += 1
            yield number

    def state_dict(self) -> dict[str, int]:
        return {"at": self.at}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.start = state["at"]
        self.at = self.start if self.sticky else self.at


class Sticky(Stateful):
    sticky = True


STREAMS = [Plain, Sharded, Counting, Stateful, Sticky]
each_stream = pytest.mark.parametrize("kind", STREAMS)
each_kind = pytest.mark.parametrize("kind", [MapStyle, *STREAMS])


def mixture(kind: Any, *lengths: int, weights: Any = (3, 1, 0.5), **options: Any) -> Any:
    """Return a mixture whose third source is map-style."""
    kinds = (kind, kind, MapStyle, kind)
    sources = {
        "abcd"[n]: (kinds[n](MILLION * n, length), weights[n]) for n, length in enumerate(lengths)
    }
    mixed: Any = Mixture(sources, **options)
    assert isinstance(mixed, MixtureStream) is not issubclass(kind, MapStyle)
    return mixed


def mapped(*lengths: int, **options: Any) -> Any:
    return mixture(MapStyle, *lengths, **options)


def all_of(mixed: Any) -> list[int]:
    if isinstance(mixed, MixtureStream):
        return list(mixed)
    return [mixed[position] for position in range(len(mixed))]


def sources_of(samples: list[int]) -> Counter[int]:
    return Counter(sample // MILLION for sample in samples)


def batches(loader: Any) -> list[list[int]]:
    return [np.asarray(batch).tolist() for batch in loader]


def samples_of(loader: Any) -> list[int]:
    return list(chain.from_iterable(batches(loader)))


# Of sources with 50, 300 and 20 samples, whose weights are 3, 1 and 0.5.
ENDS = {"first": (50, 17, 8), "all": (900, 300, 150), "once": (50, 300, 20), "repeat": (60, 20, 10)}
each_stop = pytest.mark.parametrize("stop", ENDS)


def ending(kind: Any, stop: str, **options: Any) -> Any:
    return mixture(kind, 50, 300, 20, stop=stop, length=90 if stop == "repeat" else None, **options)


@each_kind
@each_stop
def test_an_epoch_ends_where_the_user_chose(kind: Any, stop: str) -> None:
    samples = all_of(ending(kind, stop))
    for source, expected in enumerate(ENDS[stop]):
        assert abs(sources_of(samples)[source] - expected) <= (2 if kind is MapStyle else 40)
        times = Counter(sample for sample in samples if sample // MILLION == source).values()
        assert max(times) - min(times) <= 1
    if stop in ("first", "once"):
        assert max(Counter(samples).values()) == 1
    if stop in ("all", "once"):
        assert len(set(samples)) == 370


@pytest.mark.parametrize("kind", [MapStyle, Counting])
@each_stop
def test_an_epoch_has_an_order_of_its_own_and_so_has_a_seed(kind: Any, stop: str) -> None:
    mixed = ending(kind, stop)
    first = all_of(mixed)
    mixed.set_epoch(1)
    assert all_of(mixed) != first
    mixed.set_epoch(0)
    assert all_of(mixed) == first
    assert all_of(ending(kind, stop, seed=1)) != first


def test_a_source_that_can_be_asked_gets_another_epoch_in_each_pass() -> None:
    samples = list(mixture(Sharded, 50, 300, weights=(1, 0), stop="repeat", length=150))
    assert samples[:100] == [*range(50), *range(1, 50), 0]


def test_a_mixture_is_read_anywhere_and_nowhere_else() -> None:
    mixed = mapped(60, MILLION - 1, 20, stop="repeat")
    assert len(mixed) == 2**62
    far = [mixed[10**15 + n] for n in range(1000)]
    assert [mixed[10**15 + n] for n in reversed(range(1000))][::-1] == far
    assert sources_of(far)[0] in range(640, 700)
    mixed = mapped(5, 5, 5)
    assert [mixed[np.int64(position)] for position in range(-len(mixed), 0)] == all_of(mixed)
    for position in (len(mixed), -len(mixed) - 1):
        with pytest.raises(IndexError, match="out of range"):
            mixed[position]


@pytest.mark.parametrize(("threads", "copies"), [(0, "auto"), (3, "auto"), (3, "shared")])
def test_a_loader_has_the_order_of_each_epoch_on_any_threads(threads: int, copies: Any) -> None:
    mixed, other = mapped(50, 30, 200), mapped(50, 30, 200)
    kept: dict[str, Any] = {"persistent_workers": threads > 0, "dataset_copy": copies}
    with ThreadLoader(mixed, 8, num_workers=threads, **kept) as loader:
        for epoch in range(3):
            mixed.set_epoch(epoch)
            other.set_epoch(epoch)
            assert samples_of(loader) == all_of(other)


@each_stream
@pytest.mark.parametrize("workers", [1, 3])
def test_workers_share_each_source_and_the_length(kind: Any, workers: int) -> None:
    with ThreadLoader(mixture(kind, 51, 301, 20, stop="once"), 7, num_workers=workers) as loader:
        samples = samples_of(loader)
    assert sorted(samples) == sorted(mixture(kind, 51, 301, 20, stop="once"))
    mixed = mixture(kind, 50, 300, 20, stop="repeat", length=1001)
    with ThreadLoader(mixed, 10, num_workers=workers) as loader:
        assert len(samples_of(loader)) == 1001


@pytest.mark.parametrize(
    ("kind", "options", "workers"),
    [
        *((kind, {"stop": "once"}, 2) for kind in (MapStyle, *STREAMS)),
        *((kind, {"stop": "all"}, 0) for kind in (MapStyle, Stateful)),
        *((kind, {"stop": "repeat", "length": 300}, 2) for kind in (MapStyle, Sticky)),
    ],
)
def test_a_run_goes_on_in_the_middle_of_any_epoch(kind: Any, options: Any, workers: int) -> None:
    def make() -> Any:
        mixed = mixture(kind, 50, 100, 20, **options)
        mixed.set_epoch(2)
        kept = {"num_workers": workers, "persistent_workers": workers > 0}
        return ThreadLoader(mixed, 200 if options["stop"] == "all" else 40, collate_fn=list, **kept)

    check_each_state(make)
    assert kind is not MapStyle or len(json.dumps(make().state_dict())) < 600


def test_a_source_with_a_state_is_not_read_again() -> None:
    options: Any = {"stop": "repeat", "length": MILLION}
    iterator = iter(mixture(Stateful, 5000, 3000, 20, **options))
    assert len(list(islice(iterator, 2000))) == 2000
    state, expected = as_json(iterator.state_dict()), list(islice(iterator, 500))
    resumed = iter(mixture(Stateful, 5000, 3000, 20, **options))
    resumed.load_state_dict(state)
    Stateful.read = 0
    assert list(islice(resumed, 500)) == expected
    assert Stateful.read <= 500


@pytest.mark.parametrize("kind", [MapStyle, Counting])
@pytest.mark.parametrize("threads", [0, 1])
def test_weights_change_at_a_position_however_far_workers_are_ahead(
    kind: Any, threads: int
) -> None:
    def make() -> Any:
        return mixture(kind, 500, 300, 20, stop="repeat", length=4000)

    mixed, plain = make(), all_of(make())
    change = {"a": 0, "b": 1, "c": 1}
    if kind is not MapStyle:
        mixed.set_weights(change, at=2345)  # of streams they change in epochs to come
    with ThreadLoader(mixed, 10, num_workers=threads) as loader:
        iterator = iter(loader)
        got = batches(islice(iterator, 20))
        if kind is MapStyle:
            mixed.set_weights(change, at=2345)
        state = loader.state_dict()
        got += batches(iterator)
    samples = list(chain(*got))
    assert samples[:2345] == plain[:2345]
    assert sources_of(samples[2345:])[0] == 0
    assert abs(sources_of(samples[2345:])[1] - (4000 - 2345) / 2) < 20
    with ThreadLoader(make(), 10, num_workers=threads) as loader:
        loader.load_state_dict(state)
        assert batches(loader) == got[20:]


def test_weights_do_not_change_what_was_loaded() -> None:
    even = {"a": 1, "b": 1, "c": 1}
    mixed = mapped(500, 300, 20, stop="repeat", length=4000)
    mixed[1000]
    with pytest.raises(ValueError, match="position 1000 was loaded already"):
        mixed.set_weights(even, at=900)
    mixed.set_weights(even, at=2000)
    mixed.set_weights(even | {"a": 0}, at=1500)
    assert not any(mixed.source_of(position)[0] == "a" for position in range(1500, 2000))
    assert any(mixed.source_of(position)[0] == "a" for position in range(2000, 2100))


def test_the_source_comes_with_the_sample() -> None:
    for kind in (MapStyle, Plain):
        pairs: Any = all_of(mixture(kind, 50, 30, 20, with_source=True))
        assert all(sample // MILLION == number for sample, number in pairs)
    mixed = Mixture({"a": ([{"x": 1}], 1), "b": ([{"x": 2}], 1)}, stop="all", with_source="from")
    assert sorted(mixed[n]["from"] for n in range(2)) == [0, 1]
    assert mixed.names == ("a", "b")
    with pytest.raises(TypeError, match="not a mapping"):
        mapped(5, 5, 5, with_source="from")[0]


def test_the_source_of_a_position_and_the_counts_before_it_are_known() -> None:
    mixed = mapped(500, 300, 20, stop="all")
    mixed.set_epoch(2)
    counts = dict.fromkeys("abc", 0)
    for position, sample in enumerate(all_of(mixed)):
        if position % 37 == 0:
            assert mixed.counts(position) == counts
        name, index = mixed.source_of(position)
        assert "abc".index(name) * MILLION + index == sample
        counts[name] += 1
    assert mixed.counts() == counts


def test_sources_with_whole_batches_are_asked_once_a_batch() -> None:
    Whole.calls = 0
    mixed = Mixture({"a": (Whole(0, 500), 3), "b": (Whole(MILLION, 300), 1)})
    plain = mapped(500, 300, weights=(3, 1))
    with ThreadLoader(mixed, 100, num_workers=2) as loader:
        assert samples_of(loader) == all_of(plain)
        assert Whole.calls <= 2 * len(loader)
    assert plain.__getitems__ is None


def test_a_source_may_be_a_mixture() -> None:
    inner = mapped(50, 30, 20, stop="once")
    mixed = Mixture({"inner": (inner, 1), "x": (MapStyle(5 * MILLION, 100), 1)}, stop="all")
    before = all_of(mixed)
    assert len(set(before)) == 200
    mixed.set_epoch(1)
    assert len(set(all_of(mixed))) == 200
    assert all_of(inner) != all_of(mapped(50, 30, 20, stop="once"))  # it was told, too


def test_a_source_that_lies_or_fails_is_named() -> None:
    source = MapStyle(0, 50)
    mixed = Mixture({"liar": (source, 1)})
    source.length = 10
    with pytest.raises(IndexError) as caught:
        all_of(mixed)
    assert "'liar'" in caught.value.__notes__[0]
    assert "of 50" in caught.value.__notes__[0]
    with pytest.raises(ValueError, match="'liar' had 50 samples, and now has 10"):
        mixed.set_epoch(1)

    class Stopping(MapStyle):
        def __getitem__(self, index: int) -> int:
            raise StopIteration

    stopping = Mixture({"a": (Plain(0, 5), 0), "b": (Stopping(0, 5), 1)})
    with pytest.raises(RuntimeError, match="source 'b' raised StopIteration"):
        all_of(stopping)
    few = mixture(Counting, 1, 300, 20, stop="repeat", length=100)
    with (
        ThreadLoader(few, 5, num_workers=2) as loader,
        pytest.raises(ValueError, match="'a' has no sample for part 1 of 2"),
    ):
        batches(loader)


def test_a_source_that_can_not_be_asked_is_refused_where_the_ranks_are_told(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def load(shard: Any, threads: int) -> list[Any]:
        mixed = Mixture({"alone": (Counting(0, 40), 1), "books": (range(40), 1)}, stop="once")
        options: dict[str, Any] = {"threads": threads, "shard": shard, "uneven": "short"}
        with ThreadLoader(mixed, batch_size=None, **options) as loader:
            return sorted(loader)

    with pytest.raises(TypeError, match="source 'alone' can't be asked for one of 4 parts"):
        load((1, 2), 2)
    assert load((0, 1), 2) == sorted([*range(40), *range(40)])
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    found = load("auto", 1)  # all of what shares itself out, and half of the books
    assert (len(found), set(found)) == (60, set(range(40)))


def state_of(mixed: Any) -> Any:
    return (iter(mixed) if isinstance(mixed, MixtureStream) else mixed).state_dict()


def load(mixed: Any, state: Any) -> Any:
    """Return what has the state now."""
    has = iter(mixed) if isinstance(mixed, MixtureStream) else mixed
    has.load_state_dict(state)
    return has


@pytest.mark.parametrize("kind", [MapStyle, Plain])
@pytest.mark.parametrize(
    ("lengths", "options", "told"),
    [
        ((500, 300, 21), {}, r"'c': \[0.5, 20\].* and is .*'c': \[0.5, 21\]"),
        ((500, 300, 20), {"seed": 1}, "seed was 0 and is 1"),
        ((500, 300, 20), {"weights": (3, 2, 0.5)}, r"'b': \[1, .* and is .*'b': \[2, "),
        ((500, 300), {}, r"was {.*'c': .*} and is {'a': [^c]*} "),
        ((500, 300, 20, 5), {"weights": (3, 1, 0.5, 1)}, r"and is {.*'d': \[1, .* weight of 0"),
    ],
)
def test_the_state_of_another_mixture_is_refused(
    kind: Any, lengths: Any, options: Any, told: str
) -> None:
    state = state_of(mixture(kind, 500, 300, 20, stop="repeat"))
    other = mixture(kind, *lengths, stop="repeat", **options)
    with pytest.raises(StateError, match=told):
        load(other, state)
    missing = {name: part for name, part in state.items() if name != "sources"}
    for no_state in ({}, None, {"mixture": 1}, missing, state | {"epoch": -1}):
        with pytest.raises(StateError, match="state"):
            load(mixture(kind, 500, 300, 20, stop="repeat"), no_state)


@pytest.mark.parametrize("kind", [MapStyle, Counting])
def test_a_run_goes_on_with_a_new_source(kind: Any) -> None:
    old = mixture(kind, 500, 300, stop="repeat", length=3000)
    new = mixture(kind, 500, 300, 20, weights=(3, 1, 0), stop="repeat", length=3000)
    new.set_weights({"a": 1, "b": 1, "c": 1}, at=1000)
    samples = (
        all_of(load(new, state_of(old))) if kind is MapStyle else list(load(new, state_of(old)))
    )
    assert samples[:1000] == all_of(old)[:1000]
    assert sources_of(samples[1000:])[2] in range(660, 674)


def test_a_state_keeps_changes_that_come_later_and_refuses_others() -> None:
    old, new, other = (mapped(50, 30, stop="repeat") for _ in range(3))
    old.set_weights({"a": 1, "b": 2}, at=100)
    new.set_weights({"a": 1, "b": 2}, at=100)
    new.set_weights({"a": 1, "b": 9}, at=200)
    before = new.state_dict()
    new.load_state_dict(old.state_dict())
    assert new.state_dict() == before
    other.set_weights({"a": 1, "b": 2}, at=99)
    with pytest.raises(StateError, match="change at position 99"):
        other.load_state_dict(old.state_dict())
