"""One pass of one replica over a stream's shards, which can be gone on with elsewhere.

The state has no samples.  It has the seed, how many samples were read and delivered, and with which
samples those shards begin that the shuffle buffer still has some of; `shuffle_buffer.replayed`
tells from this which samples to read again.
"""

from __future__ import annotations

import random
import re
import zlib
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from threadloader.datasets.assembly import assemble
from threadloader.datasets.replicas import shards_of
from threadloader.datasets.shuffle_buffer import ShuffleBuffer, replayed
from threadloader.errors import StateError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from threadloader.datasets.replicas import Replica
    from threadloader.datasets.tar_samples import RawSample
    from threadloader.datasets.tar_stream import TarStream

__all__ = ["StreamPass"]

_VERSION = 1


class StreamPass:
    """One pass of one replica; an iterator with a state.

    Args:
        stream: Whose.
        replica: Which shards.
        seed: Decides the order.
        epoch: With the seed.

    Threads:
        all: one thread, the worker that owns it.
    """

    def __init__(self, stream: TarStream, replica: Replica, seed: int, epoch: int) -> None:
        self._stream = stream
        self._replica = replica
        self._restored: dict[str, Any] | None = None  # a state to be gone to before the next sample
        self._plan(seed, epoch)

    def _plan(self, seed: int, epoch: int) -> None:
        """Begin a pass."""
        stream, replica = self._stream, self._replica
        self._seed, self._epoch = seed, epoch
        shuffler = random.Random(f"shards {seed} {epoch}") if stream.shuffle else None  # noqa: S311
        self._shards = shards_of(
            replica, len(stream.shards), shuffler, common=stream.seed is not None
        )
        # By names without folders, which may differ on another machine.
        names = "\n".join(_name_of(stream.path_of(number)) for number in self._shards)
        self._digest = zlib.crc32(names.encode("utf-8", "surrogateescape"))
        self._rng = random.Random(  # noqa: S311  # not for secrets
            f"samples {seed} {epoch} {replica.rank} {replica.worker}"
        )
        self._buffer: ShuffleBuffer[tuple[int, RawSample]] = ShuffleBuffer(
            max(1, stream.shuffle), self._rng
        )
        self._at = 0  # which of the shards is being read
        self._samples: Iterator[RawSample] | None = None  # of that shard
        self._read = 0  # samples that were put in the buffer
        self._delivered = 0  # and that were taken out
        # Of each shard that is in the buffer, and of that being read: its first sample, counted
        # from the beginning of the pass, and how many are in the buffer.
        self._firsts: dict[int, int] = {0: 0}
        self._held: dict[int, int] = {0: 0}

    def __iter__(self) -> StreamPass:
        return self

    def __next__(self) -> Any:
        """Return the next sample.

        Raises:
            DataError: A sample or a shard is damaged; the next call goes on behind it.
            OSError: A shard can't be read; the next call goes on with the next one.
            StateError: The shards are not those of the state that was loaded.
        """
        if self._restored is not None:
            self._rebuild(self._restored)
        buffer = self._buffer
        while len(buffer.items) < buffer.size and self._fill():
            pass
        if not buffer.items:
            raise StopIteration
        at, sample = buffer.draw()
        self._delivered += 1  # a sample that can't be decoded counts, too
        self._held[at] -= 1
        self._forget(at)
        stream, path = self._stream, self._stream.path_of(self._shards[at])
        return assemble(sample, path, stream.fields, stream.decoders, stream.transform)

    def state_dict(self) -> dict[str, Any]:
        """Return where the pass is, in a few hundred bytes."""
        if self._restored is not None:
            return self._restored
        return {
            "version": _VERSION,
            "seed": self._seed,
            "epoch": self._epoch,
            "shuffle": self._stream.shuffle,
            "shards": self._digest,
            "read": self._read,
            "delivered": self._delivered,
            "firsts": [list(pair) for pair in self._firsts.items()],
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go to where a state was taken; what is in the buffer is read when it is needed.

        Raises:
            StateError: It is of other shards, another replica or another buffer.
        """
        if state.get("version") != _VERSION:
            msg = f"the state has version {state.get('version')}, and {_VERSION} can be read"
            raise StateError(msg)
        if state["shuffle"] != self._stream.shuffle:
            msg = f"the state is of shuffle={state['shuffle']}, not {self._stream.shuffle}"
            raise StateError(msg)
        self._plan(state["seed"], state["epoch"])
        if state["shards"] != self._digest:
            msg = "the state is of other shards, or of another rank or worker"
            raise StateError(msg)
        self._restored = state

    def _fill(self) -> bool:
        """Put one more sample in the buffer; return False if there is none."""
        while self._at < len(self._shards):
            if self._samples is None:
                self._samples = self._stream.read_shard(self._shards[self._at])
            try:
                sample = next(self._samples, None)
            except Exception:
                self._next_shard()
                raise
            except BaseException:  # Ctrl-C: nothing is wrong with the shard
                self._restored = self.state_dict()
                raise
            if sample is not None:
                self._put(sample)
                return True
            self._next_shard()
        return False

    def _put(self, sample: RawSample) -> None:
        self._buffer.items.append((self._at, sample))
        self._held[self._at] += 1
        self._read += 1

    def _next_shard(self) -> None:
        last, self._at, self._samples = self._at, self._at + 1, None
        self._firsts[self._at] = self._read
        self._held[self._at] = 0
        self._forget(last)

    def _forget(self, at: int) -> None:
        if at != self._at and not self._held[at]:
            del self._held[at], self._firsts[at]

    def _rebuild(self, state: dict[str, Any]) -> None:
        """Read again what the buffer had, and up to where the last shard was left."""
        self._plan(state["seed"], state["epoch"])
        buffer, read = self._buffer, state["read"]
        held = replayed(buffer.size, self._rng, read, state["delivered"])
        firsts = [(at, first) for at, first in state["firsts"]]
        found: dict[int, tuple[int, RawSample]] = {}
        self._held = {}
        for (at, first), (_, end) in pairwise([*firsts, (-1, read)]):
            numbers = {number for number in held if first <= number < end}
            current = at == firsts[-1][0]
            stop = end if current else max(numbers, default=first - 1) + 1
            self._samples = self._reread(at, range(first, stop), numbers, found)
            self._held[at] = len(numbers)
        buffer.items.extend(found[number] for number in held)
        self._firsts = dict(firsts)
        self._at, self._read, self._delivered = firsts[-1][0], read, state["delivered"]
        self._restored = None

    def _reread(
        self, at: int, reading: range, numbers: set[int], found: dict[int, tuple[int, RawSample]]
    ) -> Iterator[RawSample] | None:
        """Read a shard from its beginning on; return what reads the rest of it.

        Args:
            at: Which.
            reading: The numbers that its samples have, up to where it is read.
            numbers: Those of them to be kept.
            found: Gets them.
        """
        if at == len(self._shards):
            return None
        samples = self._stream.read_shard(self._shards[at])
        for number in reading:
            sample = next(samples, None)
            if sample is None:
                path = self._stream.path_of(self._shards[at])
                msg = f"{path} has fewer samples than when the state was saved"
                raise StateError(msg)
            if number in numbers:
                found[number] = at, sample
        return samples


def _name_of(path: str) -> str:
    return re.split(r"[/\\]", path)[-1]
