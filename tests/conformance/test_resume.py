"""A loaded state: what follows is what torchdata's StatefulDataLoader gives.

Orders are compared with torchdata's where both have the same; its shuffle is not torch's.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from support.patience import PATIENCE

from conformance.loading import MakeLoader, ours

pytest.importorskip("torchdata")
from torchdata.stateful_dataloader import StatefulDataLoader

from conformance.stateful import (
    COMMON,
    DATA,
    END,
    LAST,
    MAPS,
    Batching,
    Build,
    MapStyle,
    Stop,
    Stream,
    resume,
    save,
    save_and_resume,
)

if TYPE_CHECKING:
    from support.patience import Spawn

torchdatas: MakeLoader = partial(StatefulDataLoader, num_workers=0)

each_kind = pytest.mark.parametrize(
    ("make", "kind"),
    [*((MapStyle, kind) for kind in COMMON), *((Stream, kind) for kind in DATA)],
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


def built(make: Any, kind: str, batching: Batching, dataset: str) -> Build:
    return make(kind, batching, dataset) if make is MapStyle else make(kind, batching)


@each_kind
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
