"""Progress bars: the length is that of a whole epoch; a resumed one begins where it goes on."""

from __future__ import annotations

from io import StringIO
from itertools import islice
from typing import Any

import pytest
from support.streams import Rows

from threadloader import ThreadLoader


def made(**options: Any) -> ThreadLoader[Any]:
    return ThreadLoader(list(range(23)), batch_size=2, seed=3, **options)


def resumed(batches: int) -> ThreadLoader[Any]:
    """Return a loader that goes on after so many batches of another."""
    with made(shuffle=True) as loader:
        iterator = iter(loader)
        list(islice(iterator, batches))
        state = loader.state_dict()
    loader = made(shuffle=True)
    loader.load_state_dict(state)
    return loader


def test_an_epoch_that_begins_anew_begins_after_no_batch() -> None:
    with made() as loader:
        assert loader.resumes_after() == 0
        next(iter(loader))
        assert loader.resumes_after() == 0
        list(loader)
        loader.load_state_dict(loader.state_dict())  # it is finished, so nothing goes on from it
        assert loader.resumes_after() == 0


@pytest.mark.parametrize("batches", [1, 5, 11])
def test_a_resumed_epoch_begins_after_the_batches_that_were_delivered(batches: int) -> None:
    with resumed(batches) as loader:
        assert loader.resumes_after() == batches
        assert len(loader) == 12
        assert len(list(loader)) == 12 - batches
        assert loader.resumes_after() == 0
        assert len(list(loader)) == len(loader) == 12


def test_a_resumed_stream_begins_after_the_batches_of_all_replicas() -> None:
    with ThreadLoader(Rows(23), batch_size=2, threads=1) as loader:
        iterator = iter(loader)
        list(islice(iterator, 4))
        state = loader.state_dict()
        loader.load_state_dict(state)
        assert loader.resumes_after() == 4


def test_tqdm_ends_where_the_epoch_ends_and_begins_where_it_goes_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    tqdm = pytest.importorskip("tqdm").tqdm
    monkeypatch.setattr(tqdm, "monitor_interval", 0)  # no thread of its own
    for loader, begins in ((made(), 0), (resumed(5), 5)):
        with loader:
            bar = tqdm(loader, initial=loader.resumes_after(), disable=False, file=StringIO())
            counted = sum(1 for _ in bar)
        assert (bar.total, bar.initial, bar.n) == (12, begins, 12)
        assert counted == 12 - begins
