"""Streams: shards read from beginning to end, in parts, and resumed.

    shards ──▶ those of this part, shuffled ──▶ samples ──▶ shuffle buffer ──▶ decoded

A `ShardStream` only says what to read; each `StreamPass` over it has a place, and a state.  The
state has no samples.  It has the seed, the numbers of samples that were read and delivered, and the
first shard that still has samples in the shuffle buffer.  Which sample is drawn from the buffer
depends on the random numbers and on how many there are, never on the samples: so drawing again,
from a buffer of numbers, finds which samples to read again.
"""

from __future__ import annotations

import copy
import random
import re
import zlib
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Generic, Self, TypeVar

from threadloader._authors import (
    IterableDataset,
    Part,
    get_worker_info,
    part_here,
    pass_seed,
    rank_and_world,
)
from threadloader.datasets._files import Files
from threadloader.errors import StateError, checked_count

if TYPE_CHECKING:
    from collections.abc import Iterator

    from threadloader.datasets._files import Patterns


T = TypeVar("T")

_VERSION = 3  # of a pass's state


class Shared(SimpleNamespace):
    """The state that all copies of a dataset in one process share."""

    def __deepcopy__(self, memo: dict[int, Any]) -> Shared:
        return self


class SharedStream(IterableDataset[Any]):
    """A stream of which each replica reads a part, in an order that depends on the epoch.

    Args:
        shared: What all copies of the stream share.

    Raises:
        ValueError: The environment's ranks are none.
    """

    def __init__(self, **shared: Any) -> None:
        part_here()  # raises at once what the first epoch would
        # No epoch until `set_epoch` is called.
        self._shared = Shared(epoch=None, **shared)
        self._part: Part | None = None  # that was asked for, see `shard`

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch, which decides the order together with the seed."""
        self._shared.epoch = epoch

    def shard(self, rank: int, world_size: int, epoch: int) -> Self | None:
        """Return a part of the stream.

        A `ThreadLoader` with ``shard=`` calls it.  Without `set_epoch`, ``epoch`` decides the order
        together with ``seed``.

        Args:
            rank: Of the part.
            world_size: Number of parts.
            epoch: Its number, from 0.

        Raises:
            ValueError: There is no such part.
        """
        twin = copy.copy(self)
        part = Part.of(rank, world_size, worker=0, workers=1, epoch=epoch)
        twin._part = part  # noqa: SLF001  # a copy of this
        return twin

    def _part_here(self) -> Part:
        """Return the part that is read next, with the epoch that decides its order."""
        part, told = self._part or part_here(), self._shared.epoch
        return part if told is None else part._replace(epoch=told)


class ShardStream(SharedStream, Generic[T]):
    """Samples of shards, one after the other, shuffled in a buffer; `TarStream` says the rest.

    Args:
        pattern: Paths or URLs.
        shuffle: Samples in the shuffle buffer.
        seed: Decides the order; None: the loader's does.
        options: For URLs.
    """

    def __init__(
        self,
        pattern: Patterns,
        shuffle: int,
        seed: int | None,
        options: dict[str, Any],
    ) -> None:
        self.shuffle = checked_count("shuffle", shuffle)
        self.seed = seed
        super().__init__(files=Files(pattern, options))
        self.shards: list[str] = self._shared.files.paths
        self._passes = 0  # passes of this copy whose seed is that of other passes, too

    def read_shard(self, number: int) -> Iterator[T]:
        """Yield the samples of a shard, not decoded.

        Args:
            number: Of the shard, from 0.

        Raises:
            DataError: It is damaged.
            OSError: It can't be read.
        """
        raise NotImplementedError

    def make(self, sample: T, path: str) -> Any:
        """Return a sample for the user.

        Args:
            sample: Of a shard.
            path: Of the shard, for errors.

        Raises:
            DataError: It can't be decoded.
        """
        raise NotImplementedError

    def __repr__(self) -> str:
        order = f", shuffle={self.shuffle:,}" if self.shuffle else ""
        return f"{type(self).__name__}: {self._shared.files}{order}"

    def __iter__(self) -> Iterator[Any]:
        """Begin a pass over the shards of the calling worker; see `StreamPass`.

        Raises:
            ValueError: There are fewer shards than ranks.
        """
        world = rank_and_world()[1]
        if self._part is None and len(self.shards) < world:
            msg = f"{len(self.shards)} shards for {world} ranks: each needs one of its own"
            raise ValueError(msg)
        part = self._part_here()
        if self.seed is not None:
            return StreamPass(self, part, self.seed, part.epoch)
        seed = pass_seed()
        if seed is None:
            self._passes += 1  # torch's persistent workers have one seed for all epochs
            info: Any = get_worker_info()
            seed = random.getrandbits(62) if info is None else int(info.seed) - int(info.id)
        return StreamPass(self, part, seed, self._passes)

    def order_identity(self) -> dict[str, Any]:
        """Return what decides the order; a `ThreadLoader` refuses a state of another order."""
        seeded = {} if self.seed is None else {"seed": self.seed, "epoch": self._shared.epoch or 0}
        return seeded | {"shuffle": self.shuffle, "shards": len(self.shards)}

    def path_of(self, number: int) -> str:
        """Return a shard's path for errors: a URL without its secrets."""
        return str(self._shared.files.files[number].path)

    def close(self) -> None:
        """Close files and connections; the next pass opens them again."""
        self._shared.files.close()


class StreamPass:
    """One pass over one part; an iterator with a state.

    Args:
        stream: Is read.
        part: Of the shards, that is read.
        seed: Decides the order, together with ``epoch``.
        epoch: See ``seed``.

    Threads:
        all: one thread, the worker that owns it.
    """

    def __init__(self, stream: ShardStream[Any], part: Part, seed: int, epoch: int) -> None:
        self._stream = stream
        self._part = part
        self._restored: dict[str, Any] | None = None  # a state to restore before the next sample
        self._plan(seed, epoch)

    def _plan(self, seed: int, epoch: int) -> None:
        """Begin a pass."""
        stream, part = self._stream, self._part
        self._seed, self._epoch = seed, epoch
        order = list(range(len(stream.shards)))
        shuffle = random.Random(f"shards {seed} {epoch}").shuffle  # noqa: S311  # not for secrets
        # Where all ranks know one seed, a part has other shards in each epoch.  Ranks that shuffle
        # differently would read some shards twice and others never.
        if stream.shuffle and stream.seed is not None:
            shuffle(order)
        self._shards = order[part.number :: part.parts]
        if stream.shuffle and stream.seed is None:
            shuffle(self._shards)
        # Names without folders, which may differ on another machine.
        names = [re.split(r"[/\\]", stream.path_of(number))[-1] for number in self._shards]
        self._digest = zlib.crc32("\n".join(names).encode("utf-8", "surrogateescape"))
        self._rng = random.Random(f"samples {seed} {epoch} {part.number}")  # noqa: S311  # the same
        self._buffer: list[tuple[int, Any]] = []  # with the place of its shard in `_shards`
        self._size = max(1, stream.shuffle)  # of the buffer, before a sample is drawn
        self._at = 0  # place in `_shards` of the one that is being read
        self._samples: Iterator[Any] | None = None  # of that shard
        self._read = 0  # samples that were put in the buffer
        self._delivered = 0  # samples that were taken out of it
        # The number of each shard's first sample in this pass, by the shard's place.
        self._firsts: dict[int, int] = {0: 0}

    def __iter__(self) -> StreamPass:
        return self

    def __next__(self) -> Any:
        """Return the next sample.

        Raises:
            DataError: A sample or a shard is damaged; the next call goes on after it.
            OSError: A shard can't be read; the next call goes on with the next one.
            StateError: The shards are not those of the loaded state.
        """
        if self._restored is not None:
            self._rebuild(self._restored)
        while len(self._buffer) < self._size and self._fill():
            pass
        if not self._buffer:
            raise StopIteration
        at, sample = _drawn(self._buffer, self._rng)
        self._delivered += 1  # also a sample that can't be decoded
        return self._stream.make(sample, self._stream.path_of(self._shards[at]))

    def state_dict(self) -> dict[str, Any]:
        """Return the place of the pass, in a few hundred bytes."""
        if self._restored is not None:
            return self._restored
        begin = min((at for at, _ in self._buffer), default=self._at)
        return {
            "version": _VERSION,
            "seed": self._seed,
            "epoch": self._epoch,
            "shuffle": self._stream.shuffle,
            "shards": self._digest,
            "read": self._read,
            "delivered": self._delivered,
            "begin": [begin, self._firsts[begin]],
            "place": [self._at, self._firsts[self._at]],
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go to the place of a state; the buffer is read again before the next sample.

        Raises:
            StateError: The state is of other shards, another part or another buffer.
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
                self._buffer.append((self._at, sample))
                self._read += 1
                return True
            self._next_shard()
        return False

    def _next_shard(self) -> None:
        self._at, self._samples = self._at + 1, None
        self._firsts[self._at] = self._read

    def _rebuild(self, state: dict[str, Any]) -> None:
        """Read again from the first shard on that has samples in the buffer, up to the place."""
        self._plan(state["seed"], state["epoch"])
        read, (at, first) = state["read"], state["place"]
        held = _held(self._size, self._rng, read, state["delivered"])
        wanted, found = set(held), {}
        self._at, self._read = state["begin"]
        self._firsts = {self._at: self._read}
        failed: Exception | None = None
        while self._read < read:
            number = self._read
            try:
                if not self._fill():
                    break
            except Exception as error:  # noqa: BLE001  # it was raised before, too
                failed = error
                continue
            entry = self._buffer.pop()
            if number in wanted:
                found[number] = entry
        if self._at < at:  # no samples come between
            self._at, self._samples, self._firsts[at] = at, None, self._read
        if (self._at, self._read, self._firsts[self._at]) != (at, read, first):
            msg = "the shards have other samples than when the state was saved"
            raise StateError(msg) from failed
        self._buffer = [found[number] for number in held]
        self._delivered = state["delivered"]
        self._restored = None


def _drawn(items: list[T], rng: random.Random) -> T:
    """Take one of some items out, at random."""
    if len(items) > 1:
        at = int(rng.random() * len(items))
        items[at], items[-1] = items[-1], items[at]
    return items.pop()


def _held(size: int, rng: random.Random, put: int, drawn: int) -> list[int]:
    """Return the numbers of the samples in a buffer, in the buffer's order.

    Args:
        size: Of the buffer.
        rng: In the state that it had while the buffer was empty; it gets the state of now.
        put: Samples that were put in; one was drawn only when the buffer was full, or no more came.
        drawn: Samples that were drawn.
    """
    if size == 1:  # nothing is drawn at random
        return list(range(drawn, put))
    items: list[int] = []
    number = 0
    for _ in range(drawn):
        more = min(size - len(items), put - number)
        items += range(number, number + more)
        number += more
        _drawn(items, rng)
    return [*items, *range(number, put)]
