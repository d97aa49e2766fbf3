"""Random streams: each sample draws from its own, whichever thread loads it.

    (seed of the epoch, position of the sample) -> 128-bit key -> generators, on the first draw

A worker's thread has one set of generators for all its samples.  A sample that draws nothing costs
nothing: only a draw looks up the position, and keys the generator if it has the key of another
position.  `redirect` and `_torch` redirect the draws; this module only knows the stream of the
calling thread.
"""

from __future__ import annotations

import hashlib
import random
import secrets
import struct
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from threadloader import _torch

if TYPE_CHECKING:
    from collections.abc import Iterator, Sized

__all__ = [
    "Current",
    "SampleStream",
    "Stream",
    "WorkerStream",
    "drawing_from",
    "enter_batch_stream",
    "enter_sample_streams",
    "epoch_seed",
    "here",
    "leave_streams",
    "sample_rng",
    "sample_seed",
    "streams_seed",
]

_key_input = struct.Struct("<QQ").pack
_MASK = (1 << 64) - 1
_SAMPLE = b"sample"
_BATCH = b"batch"
_EPOCH = b"epoch"
_STREAMS = b"streams"


class Stream(Protocol):
    """One generator of each kind, for a thread to draw from.

    Threads:
        all: one thread, the worker that owns it.
    """

    @property
    def random_generator(self) -> random.Random:
        """The generator for the functions of `random`."""

    @property
    def legacy_generator(self) -> np.random.RandomState:
        """The generator for the functions of `numpy.random`."""

    @property
    def numpy_generator(self) -> np.random.Generator:
        """The generator that `sample_rng` returns."""

    @property
    def torch_generator(self) -> Any:
        """The generator for torch's operators."""

    def seed(self) -> int:
        """Return 63 bits, to seed a generator of another library with."""

    def initial_seed(self) -> int | None:
        """Return the result of ``torch.initial_seed``; None for its result without a stream."""


def _key(seed: int, position: int, purpose: bytes) -> bytes:
    """Return the 16 bytes that a generator is keyed with, in 0.5 us.

    Two different triples of seed, position and purpose give keys without any relation.

    Source: BLAKE2b (RFC 7693), with the purpose as its personalisation, 16 bytes at most.
    """
    return hashlib.blake2b(
        _key_input(seed & _MASK, position & _MASK), digest_size=16, person=purpose
    ).digest()


def epoch_seed(seed: int, epoch: int) -> int:
    """Return 63 bits for one of several epochs that have ``seed`` in common.

    Args:
        seed: Of all these epochs.
        epoch: The number of the epoch, from 0.
    """
    return int.from_bytes(_key(seed, epoch, _EPOCH)[:8], "little") >> 1


def streams_seed(seed: int, epoch: int) -> int:
    """Return 63 bits for the random streams of an epoch; `epoch_seed` is for its order."""
    return int.from_bytes(_key(seed, epoch, _STREAMS)[:8], "little") >> 1


class SampleStream:
    """A stream that moves from sample to sample, or from batch to batch.

    Invariants:
        1. A generator whose ``_*_at`` is the current position has the key of that position.
    """

    __slots__ = (
        "_counted",
        "_first",
        "_kind",
        "_legacy",
        "_legacy_at",
        "_numpy",
        "_numpy_at",
        "_philox",
        "_philox_state",
        "_random",
        "_random_at",
        "_seed",
        "_torch",
        "_torch_at",
    )

    def __init__(self) -> None:
        self._seed = 0
        self._kind = _SAMPLE
        self._first = 0
        self._counted: Sized = ()
        self._random: random.Random | None = None
        self._legacy: np.random.RandomState | None = None
        self._numpy: np.random.Generator | None = None
        # Made here: while a sample is loaded, torch may be in a mode that gives no memory.
        self._torch: Any = _torch.KeyedGenerator() if _torch.AVAILABLE else None
        self._philox: Any = None
        self._philox_state: Any = None
        self._forget()

    def move(self, seed: int, kind: bytes, first: int, counted: Sized) -> None:
        """Go to another position, and follow the positions after it.

        Args:
            seed: Of the epoch.
            kind: Whether samples or batches are counted.
            first: The position as long as ``counted`` is empty.
            counted: A list that grows by one with each position: the samples that are done.
        """
        self._seed = seed
        self._kind = kind
        self._first = first
        self._counted = counted
        self._forget()

    def _forget(self) -> None:
        self._random_at = self._legacy_at = self._numpy_at = self._torch_at = -1

    def seed(self) -> int:
        """Return 63 bits of the key."""
        key = _key(self._seed, self._first + len(self._counted), self._kind + b".seed")
        return int.from_bytes(key[8:], "little") >> 1

    @property
    def random_generator(self) -> random.Random:
        """See `Stream`."""
        position = self._first + len(self._counted)
        generator = self._random
        if self._random_at != position or generator is None:
            if generator is None:
                generator = self._random = random.Random(0)  # noqa: S311  # not for secrets
            self._random_at = position
            key = _key(self._seed, position, self._kind + b".random")
            generator.seed(int.from_bytes(key, "little"))
        return generator

    @property
    def legacy_generator(self) -> np.random.RandomState:
        """See `Stream`."""
        position = self._first + len(self._counted)
        generator = self._legacy
        if self._legacy_at != position or generator is None:
            if generator is None:
                generator = self._legacy = np.random.RandomState(np.random.MT19937(0))
            self._legacy_at = position
            key = _key(self._seed, position, self._kind + b".legacy")
            generator.seed(np.frombuffer(key, np.uint32))
        return generator

    @property
    def numpy_generator(self) -> np.random.Generator:
        """See `Stream`."""
        position = self._first + len(self._counted)
        generator = self._numpy
        if self._numpy_at != position or generator is None:
            if generator is None:
                generator = self._numpy = np.random.Generator(np.random.Philox(0))
            self._numpy_at = position
            self._key_philox(generator.bit_generator, position, b".numpy")
        return generator

    @property
    def torch_generator(self) -> Any:
        """See `Stream`."""
        position = self._first + len(self._counted)
        if self._torch_at != position:
            if self._philox is None:
                self._philox = np.random.Philox(0)
            self._torch_at = position
            self._key_philox(self._philox, position, b".torch")
            words = self._philox.random_raw(_torch.KeyedGenerator.WORDS // 2)
            self._torch.set(self.seed(), words)
        return self._torch.generator

    def initial_seed(self) -> int:
        """Return the seed of `torch_generator`, which user code may have changed."""
        if self._torch_at == self._first + len(self._counted):
            return self._torch.generator.initial_seed()  # type: ignore[no-any-return]
        return self.seed()

    def _key_philox(self, philox: Any, position: int, use: bytes) -> None:
        state = self._philox_state
        if state is None:
            state = self._philox_state = np.random.Philox(0).state  # its buffer is empty
        key = _key(self._seed, position, self._kind + use)
        state["state"]["key"] = np.frombuffer(key, np.uint64)
        philox.state = state


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
    samples: SampleStream | None = None


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
    samples = here.samples
    if samples is not None:
        samples.move(seed, _SAMPLE, first, done)
        here.stream = samples


def enter_batch_stream(seed: int, sequence: int) -> None:
    """Let the calling thread draw from the stream of a batch, for its collate function.

    Args:
        seed: Of the epoch.
        sequence: Position of the batch in the epoch, from 0.
    """
    samples = here.samples
    if samples is not None:
        samples.move(seed, _BATCH, sequence, ())
        here.stream = samples


def leave_streams() -> None:
    """Let the calling thread draw from its worker's stream again.

    Called after `enter_sample_streams` or `enter_batch_stream`.
    """
    samples = here.samples
    if samples is not None:
        samples.move(0, _SAMPLE, 0, ())  # the stream keeps no samples alive
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
