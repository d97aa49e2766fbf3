"""What the loader says of itself, and of attributes that are set."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from typing import Any

import pytest

from threadloader import ThreadLoader


def stream() -> Iterator[int]:
    yield from range(3)


def test_a_loader_says_what_it_is() -> None:
    loader: ThreadLoader[Any] = ThreadLoader(range(100), batch_size=8, threads=3)
    assert repr(loader) == "<ThreadLoader of range, 13 batches, 8 samples in each, 3 threads>"
    loader = ThreadLoader(range(100), threads=1)
    assert repr(loader) == "<ThreadLoader of range, 100 batches, 1 sample in each, 1 thread>"
    told = repr(ThreadLoader(stream(), batch_size=None))
    assert told == "<ThreadLoader of generator, as many threads as are fastest>"


def test_a_loader_that_is_being_made_says_what_it_can() -> None:
    class Shows(ThreadLoader[Any]):
        def __init__(self, *args: Any) -> None:
            self.shown = repr(self)
            super().__init__(*args)

    assert Shows(range(3)).shown == "<Shows>"


@pytest.mark.parametrize(
    ("name", "near"),
    [("thread", "threads"), ("num_worker", "num_workers"), ("pre_fetch", "prefetch")],
)
def test_an_attribute_that_is_almost_an_argument_is_warned_of(name: str, near: str) -> None:
    loader = ThreadLoader(range(3))
    with pytest.warns(UserWarning, match=rf"loader\.{name} = 8 .* name is {near}$") as caught:
        setattr(loader, name, 8)
    assert caught[0].filename == __file__


def test_other_attributes_and_those_of_subclasses_are_nobody_elses_business() -> None:
    class Own(ThreadLoader[Any]):
        pass

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        loader: Any = ThreadLoader(range(3))
        loader.comment = loader.epoch_length = 1
        loader.threads = loader.num_workers = 2
        Own(range(3)).thread = 8  # type: ignore[attr-defined]
