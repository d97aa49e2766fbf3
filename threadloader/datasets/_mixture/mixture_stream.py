"""MixtureStream: several datasets as one stream, each by its weight; some or all are iterable.

    pattern of this replica ──▶ whose turn it is ──▶ the next sample of that source's feed

A `MixtureStream` only says what to read; each `MixturePass` over it has a place, and a state.
"""

from __future__ import annotations

import copy
import operator
from typing import TYPE_CHECKING, Any

from threadloader import _torch
from threadloader._ranks.parts import PROTOCOL, has_share, is_askable
from threadloader.datasets._mixture.feeds import SourceSamples, SourceStream, put_back
from threadloader.datasets._mixture.pattern import Pattern
from threadloader.datasets._mixture.plan import Mixing, check_changing, checked_count, pattern_key
from threadloader.datasets._mixture.saved import check_saved, merged_changes, saved_state
from threadloader.datasets._mixture.source_order import SourceOrder
from threadloader.datasets._mixture.sources import (
    Sources,
    check_not_empty,
    is_map_style,
    length_of,
    tagged,
)
from threadloader.datasets._mixture.weights import checked_weights, whole_weights
from threadloader.datasets._shards.sharding import part_of_all, this_replica
from threadloader.errors import StateError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from threadloader.datasets._mixture.feeds import Fresh
    from threadloader.datasets._mixture.pattern import Block
    from threadloader.datasets._mixture.plan import Changes
    from threadloader.datasets._mixture.stopping import Stop
    from threadloader.datasets._shards.sharding import Replica

    IterableDataset = _torch.IterableDataset[Any]
else:
    IterableDataset = _torch.IterableDataset

__all__ = ["MixtureStream"]


class _Shared:
    """The state that all copies of a stream in one process share."""

    __slots__ = ("changes", "epoch")

    def __init__(self) -> None:
        self.epoch: int | None = None  # None until `set_epoch` is called
        self.changes: Changes = ()

    def __deepcopy__(self, memo: dict[int, Any]) -> _Shared:
        return self


class MixtureStream(IterableDataset):
    """A stream of samples of several datasets, each as often as its weight says.

    Each worker of each rank mixes its own part of every source, by the same weights.

    Args:
        sources: ``{name: (dataset, weight)}``; iterable and map-style.
        seed: Decides whose turn it is, and the order of map-style sources, together with the number
            given to `set_epoch`.  The order of iterable sources is their own.
        stop: See `Mixture`; each worker stops by itself.
        length: Samples in an epoch of ``stop="repeat"``, of all workers and ranks together.
        shuffle: Whether map-style sources are shuffled.
        with_source: See `Mixture`.
        rank: Of this process; None asks torch.distributed, then the environment's ``RANK``.
        world_size: Number of ranks; None asks in the same way, with ``WORLD_SIZE``.

    Raises:
        TypeError: A source is no dataset, or an iterator, which can be read only once.
        ValueError: A weight is negative, infinite or NaN, or all are 0.

    Threads:
        set_epoch, set_weights: consumer, between two epochs; all else: one thread, the worker that
        owns it.
    """

    __module__ = "threadloader.datasets"  # its public place, which pickles name

    # Of the class, as an object that was pickled before there were parts has none.
    _part: Replica | None = None  # that was asked for, see `shard`
    _asked_epoch = 0

    def __init__(
        self,
        sources: Mapping[str, tuple[Any, float]],
        *,
        seed: int = 0,
        stop: Stop = "first",
        length: int | None = None,
        shuffle: bool = True,
        with_source: bool | str = False,
        rank: int | None = None,
        world_size: int | None = None,
    ) -> None:
        self.names, self._datasets, weights = Sources.of(sources)
        self._lengths = tuple(map(_length_of, self.names, self._datasets))
        check_not_empty(self.names, self._lengths, weights)
        self._mixing = Mixing(self.names, (), weights, seed, stop, length, shuffle)
        self._with_source = with_source
        self._ranks = rank, world_size
        this_replica(rank, world_size)
        self._shared = _Shared()
        self._fresh: Fresh = {}

    def shard(self, rank: int, world_size: int, epoch: int) -> MixtureStream | None:
        """Return a part of the mixture: the same mixture of a part of every source.

        A `ThreadLoader` with ``shard=`` calls it.  Without `set_epoch`, ``epoch`` decides the order
        together with ``seed``.

        Args:
            rank: Of the part.
            world_size: Number of parts.
            epoch: Its number, from 0.

        Returns:
            None if the mixture was given a rank, or if a source is an iterable dataset of torch's
            without this method, which shares itself out.

        Raises:
            TypeError: Such a source can't know of these parts: there are more of them than the
                environment has ranks.
            ValueError: There is no such part.
        """
        if self._ranks != (None, None):
            return None
        streams = [each for each in self._datasets if isinstance(each, _torch.IterableDataset)]
        if not all(map(is_askable, streams)):
            self._check_shares(world_size)
            return None
        put_back(self._fresh)
        twin = copy.copy(self)
        vars(twin).update(_part=part_of_all(rank, world_size), _asked_epoch=epoch)
        # One for both: the sources are, too, and the next part finds what this one leaves.
        self._fresh = {}
        vars(twin)["_fresh"] = self._fresh
        return twin

    def _check_shares(self, parts: int) -> None:
        """Refuse sources that share themselves out by other ranks than those of ``shard=``."""
        here = this_replica()
        if parts == here.world * here.workers:
            return
        for name, dataset in zip(self.names, self._datasets, strict=True):
            streams = isinstance(dataset, _torch.IterableDataset)
            if streams and not is_askable(dataset) and not has_share(dataset):
                msg = (
                    f"source {name!r} can't be asked for one of {parts} parts: "
                    f"{type(dataset).__name__} has no method {PROTOCOL}, and would share itself "
                    f"out by the environment's ranks ({here.world}) and the workers of this one "
                    f"({here.workers})"
                )
                raise TypeError(msg)

    def __iter__(self) -> Iterator[Any]:
        if self._part is not None:
            return MixturePass(self, self._part, self._epoch, self._shared.changes)
        # No reference to the last pass: its files are open as long as it lives.
        fresh, self._fresh = self._fresh, {}
        put_back(fresh)
        return MixturePass(self, this_replica(*self._ranks), self._epoch, self._shared.changes)

    def __getstate__(self) -> dict[str, Any]:
        return vars(self) | {"_fresh": {}}  # a copy has sources of its own

    def set_epoch(self, epoch: int) -> None:
        """Set which epoch comes next; it is also set on each source that has a ``set_epoch``."""
        self._shared.epoch = checked_count("epoch", epoch)
        for dataset in self._datasets:
            if callable(getattr(dataset, "set_epoch", None)):
                dataset.set_epoch(epoch)

    def set_weights(self, weights: Mapping[str, float], *, at: int) -> None:
        """Change the weights in the next epochs, from a position of each worker's stream on.

        Args:
            weights: Of all sources, by name.
            at: After how many samples of a worker, in an epoch.

        Raises:
            ValueError: A weight is negative or NaN, a name is unknown, all weights are 0, or the
                stream ends with its sources.
        """
        check_changing(self._mixing.stop)
        at, changed = checked_count("at", at), checked_weights(weights, self.names)
        check_not_empty(self.names, self._lengths, changed)
        others = [change for change in self._shared.changes if change[0] != at]
        self._shared.changes = tuple(sorted([*others, (at, changed)]))

    def order_identity(self) -> dict[str, Any]:
        """Return what decides the order; a `ThreadLoader` refuses a state of another order."""
        return {"seed": self._mixing.seed, "epoch": self._shared.epoch or 0}

    @property
    def _epoch(self) -> int:
        """What decides the order together with the seed."""
        told = self._shared.epoch
        return self._asked_epoch if told is None else told

    def feeds(self, replica: Replica, epoch: int) -> list[SourceStream | SourceSamples]:
        """Return a feed for each source."""
        mixing = self._mixing
        lengths = [length or 0 for length in self._lengths]
        order = SourceOrder(self.names, lengths, mixing.seed, epoch, shuffle=mixing.shuffle)
        feeds: list[SourceStream | SourceSamples] = []
        for number, (name, dataset) in enumerate(zip(self.names, self._datasets, strict=True)):
            length = self._lengths[number]
            if length is None:
                feeds.append(SourceStream(name, dataset, replica, epoch, self._fresh))
            else:
                feeds.append(SourceSamples(name, dataset, number, length, replica, order))
        return feeds

    @property
    def mixing(self) -> Mixing:
        """What decides all epochs."""
        return self._mixing

    @property
    def with_source(self) -> bool | str:
        """Whether samples have the number of their source; see `Mixture`."""
        return self._with_source

    def __repr__(self) -> str:
        total = sum(self._mixing.weights)
        shares = zip(self.names, self._mixing.weights, strict=True)
        return "MixtureStream: " + ", ".join(f"{n} {weight / total:.2%}" for n, weight in shares)


def _length_of(name: str, dataset: Any) -> int | None:
    """Return the length of a map-style source; None for an iterable one."""
    if is_map_style(name, dataset):
        return length_of(name, dataset)
    if hasattr(type(dataset), "__next__") and not isinstance(dataset, _torch.IterableDataset):
        msg = (
            f"source {name!r} is an iterator, {type(dataset).__name__}, which can be read only "
            "once: give an object whose __iter__ begins anew"
        )
        raise TypeError(msg)
    return None


class MixturePass:
    """One pass of one replica; an iterator with a state.

    Args:
        stream: Is read.
        replica: Reads its part of each source.
        epoch: Decides the order, together with the stream's seed.
        changes: Of the weights.

    Threads:
        all: one thread, the worker that owns it.
    """

    def __init__(
        self, stream: MixtureStream, replica: Replica, epoch: int, changes: Changes
    ) -> None:
        self.stream = stream
        self._replica = replica
        self._begin(epoch, changes)

    def _begin(self, epoch: int, changes: Changes) -> None:
        mixing, replica = self.stream.mixing, self._replica
        self._epoch, self._changes = epoch, changes
        number = replica.rank * replica.workers + replica.worker
        self._weights = whole_weights(mixing.weights)
        self._pattern = Pattern(pattern_key(mixing.seed, epoch) + number, self._weights)
        for at, weights in changes:
            self._pattern.add(at, whole_weights(weights))
        self._feeds = self.stream.feeds(replica, epoch)
        self._position = 0
        self._block: Block | None = None
        # Sources that ended, and where: in the order in which they did.
        self._ended: dict[int, int] = {}
        self._stopped = False
        self._length: int | None = None
        if mixing.length is not None:
            replicas = replica.world * replica.workers
            self._length = mixing.length // replicas + (number < mixing.length % replicas)

    def __iter__(self) -> MixturePass:
        return self

    def __next__(self) -> Any:
        """Return the next sample.

        Raises:
            Exception: A source's own; the next call asks that source again.
            ValueError: A source with a weight has no sample for this replica.
        """
        while not (self._stopped or self._position == self._length):
            source = self._source()
            feed = self._feeds[source]
            try:
                sample = feed.next()
            except StopIteration:
                self._end_of(source)
                continue
            self._position += 1
            with_source = self.stream.with_source
            return sample if with_source is False else tagged(sample, source, with_source)
        raise StopIteration

    def _source(self) -> int:
        """Return the source whose turn it is."""
        block, position = self._block, self._position
        if block is None or not block.first <= position < block.stop:
            self._block = block = self._pattern.block(position)
        return int(block.sources[position - block.first])

    def _end_of(self, source: int) -> None:
        """Note that a source has ended, and stop or go on as the user chose."""
        stop = self.stream.mixing.stop
        self._feeds[source].begin_again()
        self._ended.setdefault(source, self._position)
        weighted = sum(map(bool, self._weights))
        if stop == "first" or (stop in ("all", "once") and len(self._ended) == weighted):
            self._stopped = True
        elif stop == "once":
            self._leave_out(source, self._position)

    def _leave_out(self, source: int, position: int) -> None:
        """Give a source no further turn."""
        left = [
            0 if number in self._ended or number == source else weight
            for number, weight in enumerate(self._weights)
        ]
        self._pattern.add(position, left)
        self._block = None

    def state_dict(self) -> dict[str, Any]:
        """Return the place of the pass, with the states of all sources."""
        return {
            **saved_state(self.stream.mixing, self._epoch, self._changes),
            "position": self._position,
            "ended": [[source, position] for source, position in self._ended.items()],
            "stopped": self._stopped,
            "feeds": [feed.state() for feed in self._feeds],
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go to the place of a state.

        Raises:
            StateError: It is the state of another mixture.
        """
        stream = self.stream
        saved = check_saved(state, stream.mixing)
        self._begin(saved["epoch"], merged_changes(saved, self._changes, stream.names))
        try:
            position, ended = operator.index(saved["position"]), list(saved["ended"])
            names = list(saved["sources"])
            feeds = dict(zip(names, saved["feeds"], strict=True))
            numbers = {number: stream.names.index(name) for number, name in enumerate(names)}
        except (KeyError, TypeError, ValueError) as error:
            msg = f"the state of the mixture is incomplete or changed: {error!r}"
            raise StateError(msg) from None
        for number, where in ended:
            self._ended[numbers[number]] = where
            if stream.mixing.stop == "once" and len(self._ended) < sum(map(bool, self._weights)):
                self._leave_out(numbers[number], where)
        self._position, self._stopped = position, bool(saved["stopped"])
        for name, feed in zip(stream.names, self._feeds, strict=True):
            if name in feeds:
                feed.load(feeds[name])
