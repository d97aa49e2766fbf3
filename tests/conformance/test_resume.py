"""A loaded state: what follows is what would have, and what torchdata's StatefulDataLoader gives.

Orders are compared with torchdata's where both have the same; its shuffle is not torch's.
"""

from __future__ import annotations

import copy
import json
import threading
import warnings
from functools import partial
from itertools import count
from typing import TYPE_CHECKING, Any

import pytest
import torch
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from support.patience import PATIENCE

from conformance.datasets import Samples
from conformance.loading import MakeLoader, ours, torchs
from threadloader import ThreadLoader

pytest.importorskip("torchdata")
from torchdata.stateful_dataloader import StatefulDataLoader

from conformance.stateful import (
    COMMON,
    DATA,
    END,
    LAST,
    MAPS,
    SHUFFLES,
    Batching,
    Build,
    MapStyle,
    Stop,
    Stream,
    begin,
    epochs,
    flat,
    lists,
    resume,
    resume_again,
    save,
    save_and_resume,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from support.patience import Spawn

pytestmark = pytest.mark.filterwarnings("ignore:.*use of fork:DeprecationWarning")

torchdatas: MakeLoader = partial(StatefulDataLoader, num_workers=0)

each_sampler = pytest.mark.parametrize("sampler", [*COMMON, *SHUFFLES])
each_common_sampler = pytest.mark.parametrize("sampler", COMMON)
each_data = pytest.mark.parametrize("data", DATA)

# `spawn` has no state that one example could leave to the next.
many = settings(
    max_examples=40,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)

batchings = st.builds(
    Batching,
    size=st.integers(1, 9),
    rows=st.sampled_from([2, 3, 1, 10, None]),
    drop_last=st.booleans(),
    batch_sampler=st.booleans(),
    every=st.sampled_from([1, 2, 5, None]),
)
stops = st.builds(Stop, st.integers(0, 2), st.sampled_from([LAST, END, None, 0, 1, 2, 3]))
numbers_of_threads = st.integers(0, 3)


@each_sampler
@many
@given(
    batching=batchings,
    dataset=st.sampled_from(sorted(MAPS)),
    stop=stops,
    threads=st.tuples(numbers_of_threads, numbers_of_threads),
)
def test_what_follows_is_what_would_have_followed_with_any_threads(
    sampler: str,
    batching: Batching,
    dataset: str,
    stop: Stop,
    threads: tuple[int, int],
    spawn: Spawn,
) -> None:
    build = MapStyle(sampler, batching, dataset)
    saved = spawn(save, ours(threads[0]), build, stop).result(PATIENCE)
    assert spawn(resume, ours(threads[1]), build, saved).result(PATIENCE) == saved.after


@each_data
@many
@given(batching=batchings, stop=stops, threads=numbers_of_threads, persistent=st.booleans())
def test_what_follows_of_an_iterable_is_what_would_have_followed(
    data: str, batching: Batching, stop: Stop, threads: int, persistent: bool, spawn: Spawn
) -> None:
    build = Stream(data, batching)
    make_loader = partial(ours(threads), persistent_workers=persistent and threads > 0)
    saved = spawn(save, make_loader, build, stop).result(PATIENCE)
    assert spawn(resume, make_loader, build, saved).result(PATIENCE) == saved.after


@pytest.mark.parametrize(
    ("make", "kinds"), [(MapStyle, [*COMMON, *SHUFFLES]), (Stream, [*DATA])], ids=["map", "stream"]
)
@many
@given(
    data=st.data(),
    batching=batchings,
    stop=stops,
    threads=numbers_of_threads,
    more=st.integers(0, 3),
)
def test_a_state_of_a_resumed_epoch_is_as_good(
    make: Build,
    kinds: list[str],
    data: st.DataObject,
    batching: Batching,
    stop: Stop,
    threads: int,
    more: int,
    spawn: Spawn,
) -> None:
    build = make(data.draw(st.sampled_from(kinds)), batching)
    saved = spawn(save, ours(threads), build, stop).result(PATIENCE)
    again = spawn(resume_again, ours(threads), build, saved, more).result(PATIENCE)
    assert again == saved.after


@each_common_sampler
@many
@given(
    batching=batchings, dataset=st.sampled_from(sorted(MAPS)), stop=stops, threads=st.integers(0, 2)
)
def test_what_follows_is_torchdata_s(
    sampler: str, batching: Batching, dataset: str, stop: Stop, threads: int, spawn: Spawn
) -> None:
    build = MapStyle(sampler, batching, dataset)
    saved = save(torchdatas, build, stop)
    repeats = sampler == "stateful" and saved.complete and batching.ends_in_a_part
    assume(not repeats)
    assume(not (sampler in ("distributed", "skips once") and saved.between))
    expected = resume(torchdatas, build, saved)
    assert spawn(save_and_resume, ours(threads), build, stop).result(PATIENCE) == expected


@each_data
@many
@given(batching=batchings, stop=stops, threads=st.integers(0, 1))
def test_what_follows_of_an_iterable_is_torchdata_s(
    data: str, batching: Batching, stop: Stop, threads: int, spawn: Spawn
) -> None:
    build = Stream(data, batching)
    saved = save(torchdatas, build, stop)
    ended = saved.between or (saved.complete and batching.ends_in_a_part)
    assume(not (data == "skips once" and ended))
    expected = resume(torchdatas, build, saved)
    assert spawn(save_and_resume, ours(threads), build, stop).result(PATIENCE) == expected


@pytest.mark.parametrize("data", ["no state", "stateful", "stateful iterator", "its own iterator"])
@pytest.mark.parametrize("stop", [Stop(0, 1), Stop(0, 4), Stop(1, 3), Stop(0, END)], ids=str)
def test_what_follows_of_shards_is_that_of_torchdata_s_processes(
    data: str, stop: Stop, spawn: Spawn
) -> None:
    build = Stream(data, Batching(size=11))
    make_loader = partial(StatefulDataLoader, num_workers=2, multiprocessing_context="fork")
    expected = save_and_resume(make_loader, build, stop)
    assert spawn(save_and_resume, ours(2), build, stop).result(PATIENCE) == expected


@pytest.mark.parametrize(
    "build", [*map(MapStyle, (*COMMON, *SHUFFLES)), *map(Stream, DATA)], ids=str
)
@pytest.mark.parametrize("stop", [Stop(e, t) for e in (0, 1) for t in (None, 0, 2, END)], ids=str)
@pytest.mark.parametrize("threads", [0, 2])
def test_a_loaded_state_is_the_state_also_once_its_epoch_goes_on(
    build: Build, stop: Stop, threads: int, spawn: Spawn
) -> None:
    def states(state: Any, epoch: int) -> Iterator[Any]:
        loader = build(ours(threads), 1)
        loader.load_state_dict(state)
        yield loader.state_dict()
        if state["begun"]:
            iterator = begin(loader, epoch)
            yield loader.state_dict()
            lists(iterator)

    saved = spawn(save, ours(threads), build, stop).result(PATIENCE)
    told = spawn(lambda: list(states(saved.state, saved.epoch))).result(PATIENCE)
    assert told == [saved.state] * len(told)
    assert len(told) == (1 if stop.taken in (None, END) else 2)


class Reads(Samples):
    """Tells what is read of it."""

    def __init__(self, samples: Any, read: list[int]) -> None:
        super().__init__(samples)
        self.read = read

    def __getitem__(self, index: Any) -> Any:
        self.read.append(index)
        return super().__getitem__(index)


@each_sampler
@pytest.mark.parametrize("stop", [Stop(0, 2), Stop(1, 3), Stop(1, END)], ids=str)
@pytest.mark.parametrize("threads", [0, 2])
def test_no_sample_that_was_delivered_is_read_again(
    sampler: str, stop: Stop, threads: int, spawn: Spawn
) -> None:
    read: list[int] = []

    def make_loader(dataset: Samples, **arguments: Any) -> Any:
        return ThreadLoader(Reads(dataset.samples, read), threads=threads, **arguments)

    build = MapStyle(sampler, Batching(size=13))
    saved = spawn(save, make_loader, build, stop).result(PATIENCE)
    read.clear()
    assert flat(spawn(resume, make_loader, build, saved).result(PATIENCE)) == sorted(read)
    assert flat(saved.after) == sorted(read)


def unordered(
    make_loader: Callable[..., Any], gate: threading.Event, early: int
) -> tuple[list[Any], list[list[Any]]]:
    """Return what an epoch delivers, and what follows each of its states.

    Args:
        make_loader: Of a dataset that has a sample wait for the gate.
        gate: Opens during the epoch.
        early: Batches that are delivered before.
    """
    gate.clear()
    loader = make_loader(in_order=False)
    iterator = iter(loader)
    delivered: list[Any] = []
    states = [loader.state_dict()]
    for batch in iterator:
        delivered.append(batch.tolist())
        states.append(json.loads(json.dumps(loader.state_dict())))
        if len(delivered) == early:
            gate.set()
    after = []
    for state in states:
        twin = make_loader(in_order=False)
        twin.load_state_dict(state)
        after.append(lists(twin))
    return delivered, after


@each_sampler
@pytest.mark.parametrize("threads", [2, 3])
def test_out_of_order_each_batch_comes_before_a_state_or_after_it(
    sampler: str, threads: int, spawn: Spawn
) -> None:
    gate, calls = threading.Event(), count()

    class Gated(Samples):
        def __getitem__(self, index: Any) -> Any:
            if next(calls) == 0:
                assert gate.wait(PATIENCE)
            return super().__getitem__(index)

    def make_loader(dataset: Any = None, **arguments: Any) -> Any:
        if dataset is None:
            return MapStyle(sampler, Batching(13))(partial(make_loader, **arguments))
        return ThreadLoader(Gated(dataset.samples), threads=threads, **arguments)

    expected = flat(epochs(MapStyle(sampler, Batching(13))(ours(0)), 0, 1))
    delivered, after = spawn(unordered, make_loader, gate, 3).result(PATIENCE)
    for number, rest in enumerate(after):
        assert flat([delivered[:number], rest]) == expected


@each_data
@pytest.mark.parametrize("threads", [2, 3])
def test_out_of_order_each_batch_of_a_replica_comes_before_a_state_or_after_it(
    data: str, threads: int, spawn: Spawn
) -> None:
    gate = threading.Event()

    def wait(worker: int) -> None:
        assert worker > 0 or gate.wait(PATIENCE)

    def make_loader(**arguments: Any) -> Any:
        return ThreadLoader(DATA[data](13, wait), 2, threads=threads, **arguments)

    delivered, after = spawn(unordered, make_loader, gate, 2).result(PATIENCE)
    for number, rest in enumerate(after):
        assert flat([delivered[:number], rest]) == list(range(13))


@pytest.mark.parametrize("make_loader", [torchdatas, ours(0), ours(2)], ids=str)
def test_an_empty_state_starts_anew(make_loader: MakeLoader, spawn: Spawn) -> None:
    def told() -> list[Any]:
        loader = make_loader(range(5), 2)
        next(iter(loader))
        loader.load_state_dict({})
        return lists(loader)

    assert spawn(told).result(PATIENCE) == [[0, 1], [2, 3], [4]]


@pytest.mark.parametrize("shuffle", [True, "keyed"])
@pytest.mark.parametrize("threads", [0, 2])
def test_the_rest_of_an_order_that_the_process_drew_is_the_same(
    shuffle: Any, threads: int, spawn: Spawn
) -> None:
    def build(make_loader: MakeLoader, seed: int = 0) -> Any:
        torch.manual_seed(seed)
        return make_loader(range(13), 2, shuffle=shuffle)

    for stop in (Stop(0, 0), Stop(0, 2), Stop(1, 3)):
        saved = spawn(save, ours(threads), build, stop).result(PATIENCE)
        assert spawn(resume, ours(threads), build, saved).result(PATIENCE)[0] == saved.after[0]


@pytest.mark.parametrize("make_loader", [torchdatas, ours(0), ours(2)], ids=str)
@pytest.mark.parametrize("stop", [Stop(0, None), Stop(0, 2), Stop(0, END)], ids=str)
def test_a_state_of_a_map_style_dataset_is_kept_too(
    make_loader: MakeLoader, stop: Stop, spawn: Spawn
) -> None:
    class Scales(Samples):
        scale = 1

        def __getitem__(self, index: Any) -> Any:
            return self.scale * index

        def state_dict(self) -> dict[str, Any]:
            return {"scale": self.scale}

        def load_state_dict(self, state: dict[str, Any]) -> None:
            self.scale = state["scale"]

    def build(make_loader: MakeLoader, fresh: int = 0) -> Any:
        dataset = Scales(range(7))
        dataset.scale = 1 if fresh else 10
        return make_loader(dataset, 2)

    saved = spawn(save, make_loader, build, stop).result(PATIENCE)
    assert spawn(resume, make_loader, build, saved).result(PATIENCE) == saved.after


@each_data
@pytest.mark.parametrize("threads", [0, 1, 2])
def test_an_iterable_that_is_read_again_is_warned_of(data: str, threads: int, spawn: Spawn) -> None:
    build = Stream(data)
    saved = spawn(save, ours(threads), build, Stop(0, 2)).result(PATIENCE)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        spawn(resume, ours(threads), build, saved).result(PATIENCE)
    told = ["is read again" if "is read again" in str(one.message) else one for one in caught]
    assert told == ["is read again"] * (data == "no state")


# Where torchdata's loader does otherwise, and why.


@pytest.mark.parametrize(
    "build", [MapStyle("distributed"), MapStyle("skips once"), Stream("skips once")], ids=str
)
@pytest.mark.parametrize("stop", [Stop(0, END), Stop(1, None), Stop(1, 0)], ids=str)
@pytest.mark.parametrize("threads", [0, 1])
def test_a_state_between_epochs_gives_a_whole_epoch_where_torchdata_gives_an_empty_one(
    build: Build, stop: Stop, threads: int, spawn: Spawn
) -> None:
    # Saved between two passes, the place is the end of the first: an epoch would be lost.
    theirs = save(torchdatas, build, stop)
    assert resume(torchdatas, build, theirs) == [[], theirs.after[1]]
    assert spawn(save_and_resume, ours(threads), build, stop).result(PATIENCE) == theirs.after


@pytest.mark.parametrize("threads", [0, 2])
def test_a_complete_epoch_is_not_repeated_where_torchdata_repeats_it(
    threads: int, spawn: Spawn
) -> None:
    # The last batch has fewer samples: when it is made, the sampler is at its beginning again.
    build, stop = MapStyle("stateful"), Stop(0, LAST)
    theirs = save(torchdatas, build, stop)
    assert len(resume(torchdatas, build, theirs)[0]) == 4
    assert spawn(save_and_resume, ours(threads), build, stop).result(PATIENCE) == theirs.after


@pytest.mark.parametrize("threads", [0, 1])
def test_the_epoch_after_a_complete_one_is_whole_where_torchdata_gives_an_empty_one(
    threads: int, spawn: Spawn
) -> None:
    # It does not ask the dataset for an iterator that is at its end, so the next one starts there.
    build, stop = Stream("skips once"), Stop(0, LAST)
    theirs = save(torchdatas, build, stop)
    assert resume(torchdatas, build, theirs) == [[], []]
    assert spawn(save_and_resume, ours(threads), build, stop).result(PATIENCE) == theirs.after


@pytest.mark.parametrize("generated", [False, True])
def test_a_shuffle_is_torch_s_where_torchdata_has_its_own(generated: bool, spawn: Spawn) -> None:
    def told(make_loader: MakeLoader) -> list[Any]:
        generator = torch.manual_seed(0)
        arguments = {"generator": generator} if generated else {}
        return epochs(make_loader(range(13), 2, shuffle=True, **arguments), 0)

    expected = told(torchs)
    assert told(torchdatas) != expected
    assert spawn(told, ours(2)).result(PATIENCE) == expected


def test_a_generator_s_next_epoch_is_the_same_where_torchdata_s_is_another(spawn: Spawn) -> None:
    # It draws no seed of workers after the order when it goes on, as it did the first time.
    def told(make_loader: MakeLoader) -> tuple[list[Any], list[Any]]:
        loaders = [MapStyle("generator")(make_loader, seed) for seed in (0, 1)]
        iterator = iter(loaders[0])
        next(iterator)
        loaders[1].load_state_dict(copy.deepcopy(loaders[0].state_dict()))
        return [lists(iterator), lists(loaders[0])], epochs(loaders[1], 0)

    expected, theirs = told(torchdatas)
    assert theirs[0] == expected[0]
    assert theirs[1] != expected[1]
    expected, mine = spawn(told, ours(2)).result(PATIENCE)
    assert mine == expected


def test_an_empty_state_takes_back_a_state_where_torchdata_keeps_it(spawn: Spawn) -> None:
    def told(make_loader: MakeLoader) -> list[Any]:
        state = save(make_loader, MapStyle("sequential"), Stop(0, 2)).state
        loader = MapStyle("sequential")(make_loader)
        loader.load_state_dict(state)
        loader.load_state_dict({})
        return lists(loader)

    assert told(torchdatas) == [[4, 5], [6]]
    assert spawn(told, ours(2)).result(PATIENCE) == [[0, 1], [2, 3], [4, 5], [6]]
