"""Random streams: a sample draws from its own, whichever thread loads it.

    (seed of the epoch, position of the sample) -> 128-bit key -> generators, on the first draw

A worker's thread has one set of generators for its samples.  Nothing is done for a sample that
draws nothing: its position is looked up only when a draw asks for it, and generators that were
keyed for another position are keyed anew then.  What a draw is redirected by is in
`random_hooks` and in `_torch`; this module only knows which stream the calling thread is in.
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
    "begin_batch",
    "begin_samples",
    "drawing_from",
    "end",
    "epoch_seed",
    "here",
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
    """What a thread draws from: one generator of each kind.

    Threads:
        all: one thread, the worker that owns it.
    """

    @property
    def random_generator(self) -> random.Random:
        """What functions of `random` draw from."""

    @property
    def legacy_generator(self) -> np.random.RandomState:
        """What functions of `numpy.random` draw from."""

    @property
    def numpy_generator(self) -> np.random.Generator:
        """What `sample_rng` returns."""

    @property
    def torch_generator(self) -> Any:
        """What torch's operators draw from."""

    def seed(self) -> int:
        """Return 63 bits for a generator of somebody else's."""

    def initial_seed(self) -> int | None:
        """Return what ``torch.initial_seed`` answers; None for what it does without a stream."""


def _key(seed: int, position: int, purpose: bytes) -> bytes:
    """Return the 16 bytes that a generator is made of.

    Source: BLAKE2b (RFC 7693), with the purpose as its personalisation, 16 bytes at most: any two
    of (seed, position, purpose) give keys that have nothing to do with each other, in 0.5 us.
    """
    return hashlib.blake2b(
        _key_input(seed & _MASK, position & _MASK), digest_size=16, person=purpose
    ).digest()


def epoch_seed(seed: int, epoch: int) -> int:
    """Return the seed of one of several epochs that have ``seed`` in common, 63 bits."""
    return int.from_bytes(_key(seed, epoch, _EPOCH)[:8], "little") >> 1


def streams_seed(seed: int, epoch: int) -> int:
    """Return what all streams of an epoch follow from, 63 bits; `epoch_seed` decides its order."""
    return int.from_bytes(_key(seed, epoch, _STREAMS)[:8], "little") >> 1


class SampleStream:
    """Streams keyed by the position of a sample, or of a batch, in the epoch.

    Invariants:
        1. A generator whose ``_*_at`` is the current position was keyed for it.
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
        # Made here: while a sample is loaded, modes of torch's may give tensors without memory.
        self._torch: Any = _torch.KeyedGenerator() if _torch.AVAILABLE else None
        self._philox: Any = None
        self._philox_state: Any = None
        self._forget()

    def move(self, seed: int, kind: bytes, first: int, counted: Sized) -> None:
        """Go to another place.

        Args:
            seed: Of the epoch.
            kind: What is counted.
            first: The position that is reached when ``counted`` is empty.
            counted: Grows by one with each position: a list of the samples that are done.
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
        """Return the seed of this position, or what user code has seeded `torch_generator` with."""
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
    """Streams of one worker from its start on: what a replica of an iterable dataset draws from.

    Seeded as torch seeds a worker process, so a replica draws what it would draw there.
    Source: ``_worker_loop`` in torch/utils/data/_utils/worker.py.

    Args:
        base_seed: Drawn once for all workers.
        number: The worker, from 0.
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
        self.samples = SampleStream()  # what it draws from while it loads a sample
        self._base_seed = base_seed
        self._number = number
        self._random: random.Random | None = None
        self._legacy: np.random.RandomState | None = None
        self._numpy: np.random.Generator | None = None
        self._torch: Any = None

    def initial_seed(self) -> int | None:
        """Return what user code has seeded `torch_generator` with; None for nothing."""
        if self._torch is None:
            return None
        seed: int = self._torch.initial_seed()
        return None if seed == self._base_seed + self._number else seed

    def seed(self) -> int:
        """Return 63 bits, drawn afresh: how many samples were read is the dataset's own affair."""
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
    stream: Stream | None = None  # what draws come from now; None leaves them alone
    outer: WorkerStream | None = None  # what they come from outside of samples
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
    """Let the calling thread draw from ``stream``, and from that of each sample while it lasts."""
    before = here.stream, here.outer, here.samples
    here.stream = here.outer = stream
    here.samples = stream.samples
    try:
        yield
    finally:
        here.stream, here.outer, here.samples = before


def begin_samples(seed: int, first: int, done: Sized) -> None:
    """Let the calling thread draw from the streams of samples, one after the other.

    Args:
        seed: Of the epoch.
        first: Position of the first sample in the epoch, from 0.
        done: Grows with each sample.
    """
    samples = here.samples
    if samples is not None:
        samples.move(seed, _SAMPLE, first, done)
        here.stream = samples


def begin_batch(seed: int, sequence: int) -> None:
    """Let the calling thread draw from the stream of a batch, for its collate function.

    Args:
        seed: Of the epoch.
        sequence: Position of the batch in the epoch, from 0.
    """
    samples = here.samples
    if samples is not None:
        samples.move(seed, _BATCH, sequence, ())
        here.stream = samples


def end() -> None:
    """Let the calling thread draw as it did before `begin_samples` or `begin_batch`."""
    samples = here.samples
    if samples is not None:
        samples.move(0, _SAMPLE, 0, ())  # the stream keeps no samples alive
        here.stream = here.outer


def sample_rng() -> np.random.Generator:
    """Return the generator of the sample that the calling thread loads.

    It gives the same numbers whatever the number of threads, and is valid until the sample is
    done.  In a collate function it is the batch's.  In a replica of an iterable dataset it is
    the worker's.  Outside of loading, say in a ``dataset[0]`` of yours, it is a fresh one.
    """
    stream = here.stream
    return np.random.default_rng() if stream is None else stream.numpy_generator


def sample_seed() -> int:
    """Return a seed of 63 bits for the sample that the calling thread loads; see `sample_rng`.

    For libraries that have generators of their own.
    """
    stream = here.stream
    return secrets.randbits(63) if stream is None else stream.seed()
