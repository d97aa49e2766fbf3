"""What the loader says of itself, and of attributes that are set."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

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
