"""A loaded state: what follows is what would have, and what torchdata's StatefulDataLoader gives.

Orders are compared with torchdata's where both have the same; its shuffle is not torch's.
"""

from __future__ import annotations

import copy
import json
import threading
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
    epochs,
    flat,
    lists,
    resume,
    resume_again,
    save,
    save_and_resume,
)

if TYPE_CHECKING:
    from support.patience import Spawn

torchdatas: MakeLoader = partial(StatefulDataLoader, num_workers=0)

ALL = [*((MapStyle, kind) for kind in (*COMMON, *SHUFFLES)), *((Stream, kind) for kind in DATA)]
each_kind = pytest.mark.parametrize(("make", "kind"), ALL)
each_common_kind = pytest.mark.parametrize(
    ("make", "kind"), [each for each in ALL if each[1] not in SHUFFLES]
)

# `spawn` has no state that one example could leave to the next.
many = settings(
    max_examples=20,
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
datasets = st.sampled_from(sorted(MAPS))
numbers_of_threads = st.integers(0, 3)


def built(make: Any, kind: str, batching: Batching, dataset: str) -> Build:
    return make(kind, batching, dataset) if make is MapStyle else make(kind, batching)


@each_kind
@many
@given(
    batching=batchings,
    dataset=datasets,
    stop=stops,
    threads=st.tuples(numbers_of_threads, numbers_of_threads),
    persistent=st.booleans(),
    more=st.integers(0, 3),
)
def test_what_follows_is_what_would_have_followed_with_any_threads_and_again(
    *,
    make: Any,
    kind: str,
    batching: Batching,
    dataset: str,
    stop: Stop,
    threads: tuple[int, int],
    persistent: bool,
    more: int,
    spawn: Spawn,
) -> None:
    build = built(make, kind, batching, dataset)
    # As many replicas go on as there were.
    before, later = threads if make is MapStyle else (threads[0], threads[0])
    keep = {"persistent_workers": persistent and before > 0 and make is Stream}
    saved = spawn(save, partial(ours(before), **keep), build, stop).result(PATIENCE)
    going_on = partial(ours(later), **keep)
    assert spawn(resume, going_on, build, saved).result(PATIENCE) == saved.after
    assert spawn(resume_again, going_on, build, saved, more).result(PATIENCE) == saved.after


@each_common_kind
@many
@given(batching=batchings, dataset=datasets, stop=stops, threads=st.integers(0, 2))
def test_what_follows_is_torchdata_s(
    *,
    make: Any,
    kind: str,
    batching: Batching,
    dataset: str,
    stop: Stop,
    threads: int,
    spawn: Spawn,
) -> None:
    build = built(make, kind, batching, dataset)
    saved = save(torchdatas, build, stop)
    ended = saved.complete and batching.ends_in_a_part
    if make is MapStyle:
        assume(not (kind == "stateful" and ended))
        assume(not (kind in ("distributed", "skips once") and saved.between))
    else:
        threads = min(threads, 1)
        assume(not (kind == "skips once" and (ended or saved.between)))
    expected = resume(torchdatas, build, saved)
    assert spawn(save_and_resume, ours(threads), build, stop).result(PATIENCE) == expected


@pytest.mark.parametrize("data", ["no state", "stateful", "stateful iterator", "its own iterator"])
@pytest.mark.parametrize("stop", [Stop(0, 1), Stop(1, 3), Stop(0, END)], ids=str)
def test_what_follows_of_shards_is_that_of_torchdata_s_processes(
    data: str, stop: Stop, spawn: Spawn
) -> None:
    build = Stream(data, Batching(size=11))
    make_loader = partial(StatefulDataLoader, num_workers=2, multiprocessing_context="fork")
    expected = save_and_resume(make_loader, build, stop)
    assert spawn(save_and_resume, ours(2), build, stop).result(PATIENCE) == expected


def unordered(make: Any, kind: str) -> tuple[list[Any], list[list[Any]]]:
    """Return what an epoch delivers whose first sample is late, and what follows each state."""
    gate, calls = threading.Event(), count()

    def wait(worker: int) -> None:
        assert worker > 0 or gate.wait(PATIENCE)

    class Gated(Samples):
        def __getitem__(self, index: Any) -> Any:
            wait(next(calls))
            return super().__getitem__(index)

    def gated(dataset: Any, **arguments: Any) -> Any:
        dataset.told = wait
        dataset = Gated(dataset.samples) if make is MapStyle else dataset
        return ThreadLoader(dataset, threads=3, in_order=False, **arguments)

    build = make(kind, Batching(13))
    loader = build(gated)
    iterator = iter(loader)
    delivered: list[Any] = []
    states = [loader.state_dict()]
    for batch in iterator:
        delivered.append(batch.tolist())
        states.append(json.loads(json.dumps(loader.state_dict())))
        if len(delivered) == 2:
            gate.set()
    after = []
    for state in states:
        twin = build(gated)
        twin.load_state_dict(state)
        after.append(lists(twin))
    return delivered, after


@each_kind
def test_out_of_order_each_batch_comes_before_a_state_or_after_it(
    make: Any, kind: str, spawn: Spawn
) -> None:
    expected = flat(epochs(make(kind, Batching(13))(ours(0)), 0, 1))
    delivered, after = spawn(unordered, make, kind).result(PATIENCE)
    for number, rest in enumerate(after):
        assert flat([delivered[:number], rest]) == expected


# Where torchdata's loader does otherwise, and why.

DIFFERENCES: dict[str, tuple[Build, list[Stop], Any]] = {
    # What torchdata gives: less than the rest, or the whole epoch again.
    # Saved between two passes, the place is the end of the first: an epoch would be lost.
    **{
        f"{build} between epochs": (build, [Stop(0, END), Stop(1, None), Stop(1, 0)], [[]])
        for build in (MapStyle("distributed"), MapStyle("skips once"), Stream("skips once"))
    },
    # The last batch has fewer samples: when it is made, the sampler is at its beginning again.
    "a complete epoch": (MapStyle("stateful"), [Stop(0, LAST)], None),
    # It does not ask the dataset for an iterator that is at its end, so the next one starts there.
    "the epoch after a complete one": (Stream("skips once"), [Stop(0, LAST)], [[], []]),
}


@pytest.mark.parametrize("case", DIFFERENCES)
def test_no_epoch_is_lost_or_repeated_where_torchdata_does_so(case: str, spawn: Spawn) -> None:
    build, stops, given = DIFFERENCES[case]
    for stop in stops:
        saved = save(torchdatas, build, stop)
        theirs = resume(torchdatas, build, saved)
        assert theirs[: len(given)] == given if given else len(theirs[0]) == 4
        for threads in (0, 1):
            told = spawn(save_and_resume, ours(threads), build, stop).result(PATIENCE)
            assert told == saved.after != theirs


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


def test_an_empty_state_starts_anew_also_where_torchdata_keeps_a_loaded_one(spawn: Spawn) -> None:
    def told(make_loader: MakeLoader, loaded: bool) -> list[Any]:
        state = save(make_loader, MapStyle("sequential"), Stop(0, 2)).state
        loader = MapStyle("sequential")(make_loader)
        if loaded:
            loader.load_state_dict(state)
        else:
            next(iter(loader))
        loader.load_state_dict({})
        return lists(loader)

    whole = told(torchdatas, False)
    assert told(torchdatas, True) == [[4, 5], [6]]
    for threads in (0, 2):
        for loaded in (False, True):
            assert spawn(told, ours(threads), loaded).result(PATIENCE) == whole
