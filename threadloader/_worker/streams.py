"""Random streams: each sample draws from its own, whichever thread loads it.

    (seed of the epoch, position of the sample) -> key -> the seed of each kind of generator

A worker's thread has one stream for itself and one for all its samples, which moves from one sample
to the next.  A generator is seeded at a sample's first draw from it, so a sample that draws nothing
costs nothing.  `redirect` and `_torch` redirect the draws; this module only knows the stream of the
calling thread.
"""

from __future__ import annotations

import random
import secrets
import threading
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from threadloader import _torch
from threadloader._order.seeds import key_of

if TYPE_CHECKING:
    from collections.abc import Sized


SAMPLE = b"sample"
BATCH = b"batch"
_SEED, _NUMPY, _RANDOM = slice(8), slice(8, 24), slice(24, 40)  # bytes of a key
_LEGACY, _TORCH = slice(40, 44), slice(44, 52)
_NBYTES = 64
_WORD = (1 << 64) - 1


class SampleStream:
    """A stream that moves from sample to sample, or from batch to batch.

    Invariants:
        1. A generator has the seed of a position if its ``_*_at`` is the length of ``_counted``;
           otherwise nobody has drawn from it at this position.

    Threads:
        all: one thread, the worker that owns it.
    """

    def __init__(self) -> None:
        self.move(0, SAMPLE, 0, ())
        self._key = b""
        # Made when first needed: to make all that a thread may need takes as long as a small epoch.
        self._random: random.Random | None = None
        self._legacy: np.random.RandomState | None = None
        self._numpy: np.random.Generator | None = None
        self._philox_state: Any = None
        # Made here: while a sample is loaded, torch may be in a mode that makes none.
        self._torch: Any = _torch.Generator() if _torch.AVAILABLE else None

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
        self._key_at = self._random_at = self._legacy_at = self._numpy_at = self._torch_at = -1

    def rest(self) -> None:
        """Stay where it is, without the samples; nobody draws before the next `move`."""
        self._counted = ()

    def _bits(self, which: slice, done: int) -> int:
        """Return some bits of the key of the present position."""
        if self._key_at != done:
            self._key = key_of(self._seed, self._first + done, self._kind, _NBYTES)
            self._key_at = done
        return int.from_bytes(self._key[which], "little")

    def seed(self) -> int:
        """Return 63 bits, to seed a generator of another library with."""
        return self._bits(_SEED, len(self._counted)) >> 1

    @property
    def random_generator(self) -> random.Random:
        """The generator for the functions of `random`."""
        done, generator = len(self._counted), self._random
        if self._random_at != done or generator is None:
            if generator is None:
                generator = self._random = random.Random(0)  # noqa: S311  # not for secrets
            generator.seed(self._bits(_RANDOM, done))
            self._random_at = done
        return generator

    @property
    def legacy_generator(self) -> np.random.RandomState:
        """The generator for the functions of `numpy.random`."""
        done, generator = len(self._counted), self._legacy
        if self._legacy_at != done or generator is None:
            if generator is None:
                generator = self._legacy = np.random.RandomState(np.random.MT19937(0))
            generator.seed(self._bits(_LEGACY, done))
            self._legacy_at = done
        return generator

    @property
    def numpy_generator(self) -> np.random.Generator:
        """The generator that `sample_rng` returns."""
        done, generator = len(self._counted), self._numpy
        if self._numpy_at != done or generator is None:
            if generator is None:
                generator = self._numpy = np.random.Generator(np.random.Philox(key=0))
                # Its buffer is empty: only the key is to be set.
                self._philox_state = dict(generator.bit_generator.state)
            key = self._bits(_NUMPY, done)
            self._philox_state["state"]["key"] = key & _WORD, key >> 64
            generator.bit_generator.state = self._philox_state
            self._numpy_at = done
        return generator

    @property
    def torch_generator(self) -> Any:
        """The generator for torch's operators."""
        done = len(self._counted)
        if self._torch_at != done:
            self._torch.manual_seed(self._bits(_TORCH, done) >> 1)
            self._torch_at = done
        return self._torch

    def initial_seed(self) -> int:
        """Return the seed of `torch_generator`, which user code may have changed."""
        if self._torch_at == len(self._counted):
            return self._torch.initial_seed()  # type: ignore[no-any-return]
        return self._bits(_TORCH, len(self._counted)) >> 1


class WorkerStream:
    """The stream of one worker, from its start on: a replica of an iterable dataset draws from it.

    It is seeded as torch seeds a worker process, so a replica draws the same numbers as there.
    Source: ``_worker_loop`` in torch/utils/data/_utils/worker.py.

    Args:
        base_seed: Drawn once for all workers.
        number: The number of the worker, from 0.
    """

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
        """See `SampleStream`."""
        if self._random is None:
            self._random = random.Random(self._base_seed + self._number)  # noqa: S311
        return self._random

    @property
    def legacy_generator(self) -> np.random.RandomState:
        """See `SampleStream`."""
        if self._legacy is None:
            base, low = self._base_seed, self._base_seed & 0xFFFFFFFF
            seeds = np.random.SeedSequence([self._number, low, base >> 32, 0])
            self._legacy = np.random.RandomState(np.random.MT19937(0))
            self._legacy.seed(seeds.generate_state(4))
        return self._legacy

    @property
    def numpy_generator(self) -> np.random.Generator:
        """See `SampleStream`."""
        if self._numpy is None:
            self._numpy = np.random.default_rng(self._base_seed + self._number)
        return self._numpy

    @property
    def torch_generator(self) -> Any:
        """See `SampleStream`."""
        if self._torch is None:
            self._torch = _torch.Generator().manual_seed(self._base_seed + self._number)
        return self._torch


Stream: TypeAlias = "SampleStream | WorkerStream"


class _Here(threading.local):
    stream: Stream | None = None  # the one to draw from now; None leaves draws alone
    outer: WorkerStream | None = None  # the one to draw from outside of samples


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
        here.stream = samples = outer.samples
        samples.move(seed, kind, first, counted)


def leave_streams() -> None:
    """Let the calling thread draw from its worker's stream again.

    Called after `enter_sample_streams` or `enter_batch_stream`.
    """
    outer = here.outer
    if outer is not None:
        outer.samples.rest()
        here.stream = outer


def sample_rng() -> np.random.Generator:
    """Return the generator of the sample that the calling thread loads.

    It gives the same numbers whatever the number of threads, and is valid until the sample is
    done.  In a collate function it is the generator of the batch, in a replica of an iterable
    dataset that of the worker.  Outside of loading, in a plain ``dataset[0]``, it is a new one.
    """
    stream = here.stream
    return np.random.default_rng() if stream is None else stream.numpy_generator


def sample_seed() -> int:
    """Return a seed of 63 bits for the sample that the calling thread loads; see `sample_rng`.

    For libraries that have generators of their own.
    """
    stream = here.stream
    return secrets.randbits(63) if stream is None else stream.seed()
