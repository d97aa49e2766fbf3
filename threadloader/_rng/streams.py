"""Random streams: each sample draws from its own, whichever thread loads it.

A worker's thread has one stream for itself and one for all its samples, see `sample_stream`.
`redirect` and `_torch` redirect the draws; this module only knows the stream of the calling thread.
"""

from __future__ import annotations

import random
import secrets
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from threadloader import _torch
from threadloader._rng.sample_stream import BATCH, SAMPLE, SampleStream

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sized

    from threadloader._rng.stream import Stream

__all__ = [
    "Current",
    "WorkerStream",
    "drawing_from",
    "enter_batch_stream",
    "enter_sample_streams",
    "here",
    "leave_streams",
    "sample_rng",
    "sample_seed",
    "seeding",
]

T = TypeVar("T")


class WorkerStream:
    """The stream of one worker, from its start on: a replica of an iterable dataset draws from it.

    It is seeded as torch seeds a worker process, so a replica draws the same numbers as there.
    Source: ``_worker_loop`` in torch/utils/data/_utils/worker.py.

    Args:
        base_seed: Drawn once for all workers.
        number: The number of the worker, from 0.
    """

    __slots__ = (
        "__weakref__",
        "_base_seed",
        "_legacy",
        "_number",
        "_numpy",
        "_random",
        "_torch",
        "samples",
    )

    def __init__(self, base_seed: int, number: int) -> None:
        self.samples = SampleStream()  # for the worker while it loads a sample
        self._base_seed = base_seed
        self._number = number
        self._random: random.Random | None = None
        self._legacy: np.random.RandomState | None = None
        self._numpy: np.random.Generator | None = None
        self._torch: Any = None

    def initial_seed(self) -> int | None:
        """Return the seed that user code gave `torch_generator`; None if it gave none."""
        if self._torch is None:
            return None
        seed: int = self._torch.initial_seed()
        return None if seed == self._base_seed + self._number else seed

    def seed(self) -> int:
        """Return 63 bits, drawn anew by each call: nobody counts the samples of a replica."""
        return int(self.numpy_generator.integers(1 << 63))

    @property
    def random_generator(self) -> random.Random:
        """See `Stream`."""
        if self._random is None:
            self._random = random.Random(self._base_seed + self._number)  # noqa: S311
        return self._random

    @property
    def legacy_generator(self) -> np.random.RandomState:
        """See `Stream`."""
        if self._legacy is None:
            base, low = self._base_seed, self._base_seed & 0xFFFFFFFF
            seeds = np.random.SeedSequence([self._number, low, base >> 32, 0])
            self._legacy = np.random.RandomState(np.random.MT19937(0))
            self._legacy.seed(seeds.generate_state(4))
        return self._legacy

    @property
    def numpy_generator(self) -> np.random.Generator:
        """See `Stream`."""
        if self._numpy is None:
            self._numpy = np.random.default_rng(self._base_seed + self._number)
        return self._numpy

    @property
    def torch_generator(self) -> Any:
        """See `Stream`."""
        if self._torch is None:
            self._torch = _torch.Generator().manual_seed(self._base_seed + self._number)
        return self._torch


class _Here(threading.local):
    stream: Stream | None = None  # the one to draw from now; None leaves draws alone
    outer: WorkerStream | None = None  # the one to draw from outside of samples
    samples: SampleStream | None = None  # the one in samples


here = _Here()


class Current:
    """The calling thread's stream, under the names that torch's ``WorkerInfo.rng`` has."""

    __slots__ = ()

    random_generator = property(lambda self: _current().random_generator)  # noqa: ARG005
    numpy_generator = property(lambda self: _current().numpy_generator)  # noqa: ARG005
    torch_generator = property(lambda self: _current().torch_generator)  # noqa: ARG005


def _current() -> Stream:
    stream = here.stream
    if stream is None:  # a WorkerInfo that was handed to another thread
        stream = WorkerStream(secrets.randbits(62), 0)
    return stream


@contextmanager
def drawing_from(stream: WorkerStream) -> Iterator[None]:
    """Let the calling thread draw from ``stream``, and from those of its samples."""
    before = here.stream, here.outer, here.samples
    here.stream = here.outer = stream
    here.samples = stream.samples
    try:
        yield
    finally:
        here.stream, here.outer, here.samples = before


def enter_sample_streams(seed: int, first: int, done: Sized) -> None:
    """Let the calling thread draw from the streams of samples, one after the other.

    Args:
        seed: Of the epoch.
        first: Position of the first sample in the epoch, from 0.
        done: The samples that are done; grows with each.
    """
    _enter(seed, SAMPLE, first, done)


def enter_batch_stream(seed: int, sequence: int) -> None:
    """Let the calling thread draw from the stream of a batch, for its collate function.

    Args:
        seed: Of the epoch.
        sequence: Position of the batch in the epoch, from 0; or of its first sample, if other ranks
            have a batch at the same position.
    """
    _enter(seed, BATCH, sequence, ())


def _enter(seed: int, kind: bytes, first: int, counted: Sized) -> None:
    outer = here.outer
    if outer is not None:
        here.stream = here.samples = samples = outer.samples
        samples.move(seed, kind, first, counted)
        samples.seed_default()


def seeding(function: Callable[[Any], T]) -> Callable[[Any], T]:
    """Return what to call in place of a function that makes one sample a call.

    Args:
        function: Of the user's; its samples are those of `enter_sample_streams`.
    """
    samples = here.samples
    return function if samples is None else samples.seeding(function)


def leave_streams() -> None:
    """Let the calling thread draw from its worker's stream again.

    Called after `enter_sample_streams` or `enter_batch_stream`.
    """
    samples = here.samples
    if samples is not None:
        samples.move(0, SAMPLE, 0, ())  # the stream keeps no samples alive
        here.stream = here.outer


def sample_rng() -> np.random.Generator:
    """Return the generator of the sample that the calling thread loads.

    It gives the same numbers whatever the number of threads, and is valid until the sample is
    done.  In a collate function it is the generator of the batch, in a replica of an iterable
    dataset that of the worker.  Outside of loading, say in a ``dataset[0]`` of yours, it is a new
    one.
    """
    stream = here.stream
    return np.random.default_rng() if stream is None else stream.numpy_generator


def sample_seed() -> int:
    """Return a seed of 63 bits for the sample that the calling thread loads; see `sample_rng`.

    For libraries that have generators of their own.
    """
    stream = here.stream
    return secrets.randbits(63) if stream is None else stream.seed()
