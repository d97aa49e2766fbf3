"""MixtureStream: several datasets as one stream, each by its weight; some or all are iterable.

    pattern of this part ──▶ whose turn it is ──▶ the next sample of that source's feed

A `MixtureStream` only says what to read; each `MixturePass` over it has a place, and a state.  A
feed is one part's place in one source: pass after pass, with the state of the source or of its
iterator, if they have one.  Otherwise its state is a number: so many samples are read again, and
dropped.
"""

from __future__ import annotations

import operator
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Any

import numpy as np

from threadloader._authors import (
    IterableDataset,
    SourcePass,
    check_askable,
    is_askable,
    part_here,
)
from threadloader.datasets._mixture.plan import (
    Mixing,
    Pattern,
    SourceOrder,
    checked_weights,
    is_map_style,
    tagged,
    taken_apart,
    tell_epoch,
)
from threadloader.datasets._shards.decoding import called
from threadloader.datasets._shards.stream import SharedStream
from threadloader.errors import StateError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from typing import Self

    from threadloader._authors import Part
    from threadloader.datasets._mixture.plan import Changes, Span, Stop


# By their roles: what brings sources back to their beginning; see `SourcePass`.
_BrokenOff = dict[str, "Callable[[], None]"]

_TURNS = 256  # of a map-style source, whose indices are computed at once: 60 us


class MixtureStream(SharedStream):
    """A stream of samples of several datasets, each as often as its weight says.

    Each worker of each rank mixes its own part of every source, by the same weights.  Ranks are
    those of torch.distributed, or of the environment's ``RANK`` and ``WORLD_SIZE``.

    Args:
        sources: ``{name: (dataset, weight)}``; iterable and map-style.
        seed: Decides whose turn it is, and the order of map-style sources, together with the number
            given to `set_epoch`.  The order of iterable sources is their own.
        stop: See `Mixture`; each worker stops by itself.
        length: Samples in an epoch of ``stop="repeat"``, of all workers and ranks together.
        shuffle: Whether map-style sources are shuffled.
        with_source: See `Mixture`.

    Raises:
        TypeError: A source is no dataset, or an iterator, which can be read only once.
        ValueError: A weight is negative, infinite or NaN, or all are 0.

    Threads:
        set_epoch, set_weights: consumer, between two epochs; all else: one thread, the worker that
        owns it.
    """

    __module__ = "threadloader.datasets"  # its public place, which pickles name

    def __init__(
        self,
        sources: Mapping[str, tuple[Any, float]],
        *,
        seed: int = 0,
        stop: Stop = "first",
        length: int | None = None,
        shuffle: bool = True,
        with_source: bool | str = False,
    ) -> None:
        self.names, self._datasets, weights = taken_apart(sources)
        lengths = tuple(map(_length_of, self.names, self._datasets))
        checked = checked_weights(weights, self.names, lengths)
        self._mixing = Mixing(self.names, lengths, checked, seed, stop, length, shuffle)
        self._with_source = with_source
        super().__init__(changes=())
        self._broken_off: _BrokenOff = {}

    def shard(self, rank: int, world_size: int, epoch: int) -> Self | None:
        """Return a part of the mixture: the same mixture of a part of every source.

        A `ThreadLoader` with ``shard=`` calls it.  Without `set_epoch`, ``epoch`` decides the order
        together with ``seed``.

        Args:
            rank: Of the part.
            world_size: Number of parts.
            epoch: Its number, from 0.

        Returns:
            None if a source is an iterable dataset of torch's without this method, which shares
            itself out.

        Raises:
            TypeError: Such a source can't know of these parts: there are more of them than the
                environment has ranks.
            ValueError: There is no such part.
        """
        streams = [each for each in self._datasets if isinstance(each, IterableDataset)]
        if not all(map(is_askable, streams)):
            self._check_shares(world_size)
            return None
        self._put_back()
        return super().shard(rank, world_size, epoch)

    def _check_shares(self, parts: int) -> None:
        """Refuse sources that share themselves out by other ranks than those of ``shard=``."""
        if parts == part_here().parts:
            return
        for name, dataset in zip(self.names, self._datasets, strict=True):
            if isinstance(dataset, IterableDataset):
                try:
                    check_askable(dataset)
                except TypeError as error:
                    error.add_note(f"source {name!r} can't be asked for one of {parts} parts")
                    raise

    def _put_back(self) -> None:
        """Bring back sources of a pass that was restored, and left before its end."""
        # A new one: the sources' copies share it, and the next part finds what this one leaves.
        put_back, self._broken_off = self._broken_off, {}
        for function in put_back.values():
            function()

    def __iter__(self) -> Iterator[Any]:
        if self._part is None:
            self._put_back()
        part = self._part_here()
        return MixturePass(
            self._mixing,
            self._with_source,
            part,
            self._shared.changes,
            partial(self._feeds, part, self._broken_off),
        )

    def _feeds(
        self, part: Part, broken_off: _BrokenOff, epoch: int
    ) -> list[_StreamFeed | _SampleFeed]:
        """Return a feed for each source."""
        mixing = self._mixing
        order = SourceOrder(mixing, epoch)
        feeds: list[_StreamFeed | _SampleFeed] = []
        for number, (name, dataset) in enumerate(zip(self.names, self._datasets, strict=True)):
            length = mixing.lengths[number]
            if length is None:
                feeds.append(_StreamFeed(name, dataset, part._replace(epoch=epoch), broken_off))
            else:
                feeds.append(_SampleFeed(name, dataset, number, length, part, order))
        return feeds

    def __getstate__(self) -> dict[str, Any]:
        return vars(self) | {"_broken_off": {}}  # a copy has sources of its own

    def set_epoch(self, epoch: int) -> None:
        """Set which epoch comes next; it is also set on each source that has a ``set_epoch``."""
        self._shared.epoch = tell_epoch(self._datasets, epoch)

    def set_weights(self, weights: Mapping[str, float], *, at: int) -> None:
        """Change the weights in the next epochs, from a position of each worker's stream on.

        Args:
            weights: Of all sources, by name.
            at: After how many samples of a worker, in an epoch.

        Raises:
            ValueError: A weight is negative or NaN, a name is unknown, all weights are 0, or the
                stream ends with its sources.
        """
        self._shared.changes = self._mixing.changed(self._shared.changes, weights, at)

    def order_identity(self) -> dict[str, Any]:
        """Return what decides the order; a `ThreadLoader` refuses a state of another order."""
        return {"seed": self._mixing.seed, "epoch": self._shared.epoch or 0}

    def __repr__(self) -> str:
        return f"MixtureStream: {self._mixing}"


def _length_of(name: str, dataset: Any) -> int | None:
    """Return the length of a map-style source; None for an iterable one."""
    if is_map_style(name, dataset):
        return len(dataset)
    if hasattr(type(dataset), "__next__") and not isinstance(dataset, IterableDataset):
        msg = (
            f"source {name!r} is an iterator, {type(dataset).__name__}, which can be read only "
            "once: give an object whose __iter__ begins anew"
        )
        raise TypeError(msg)
    return None


class MixturePass:
    """One pass over one part; an iterator with a state.

    Args:
        mixing: Of the stream.
        with_source: See `Mixture`.
        part: Of each source, that is read; its epoch decides the order, together with the seed.
        changes: Of the weights.
        feeds: Returns a feed for each source, in an epoch.

    Threads:
        all: one thread, the worker that owns it.
    """

    def __init__(
        self,
        mixing: Mixing,
        with_source: bool | str,
        part: Part,
        changes: Changes,
        feeds: Callable[[int], list[_StreamFeed | _SampleFeed]],
    ) -> None:
        self._mixing, self._with_source, self._part = mixing, with_source, part
        self._make_feeds = feeds
        self._length: int | None = None
        if mixing.length is not None:
            share, rest = divmod(mixing.length, part.parts)
            self._length = share + (part.number < rest)
        self._begin(part.epoch, changes)

    def _begin(self, epoch: int, changes: Changes) -> None:
        self._epoch, self._changes = epoch, changes
        self._pattern = Pattern(self._mixing, epoch, changes, part=self._part.number)
        self._feeds = self._make_feeds(epoch)
        self._position = 0  # of the next turn
        self._span: Span | None = None
        self._stopped = False

    def __iter__(self) -> MixturePass:
        return self

    def __next__(self) -> Any:
        """Return the next sample.

        Raises:
            Exception: A source's own; the next call asks that source again.
            ValueError: A source with a weight has no sample for this part.
        """
        while not (self._stopped or self._position == self._length):
            source = self._source()
            feed = self._feeds[source]
            if self._mixing.stop == "once" and feed.passes:  # its turns are nobody's
                self._position += 1
                continue
            try:
                sample = feed.next()
            except StopIteration:
                feed.begin_again()
                self._stopped = self._stops()
                continue
            self._position += 1
            return tagged(sample, source, self._with_source)
        raise StopIteration

    def _source(self) -> int:
        """Return the source whose turn it is."""
        span, position = self._span, self._position
        if span is None or not span.first <= position < span.stop:
            self._span = span = self._pattern.span(position)
        return int(span.sources[position - span.first])

    def _stops(self) -> bool:
        """Whether the user wants to stop, where a source has just ended."""
        stop, pairs = self._mixing.stop, zip(self._feeds, self._mixing.weights, strict=True)
        if stop in ("all", "once"):
            return all(feed.passes for feed, weight in pairs if weight)
        return stop == "first"

    def state_dict(self) -> dict[str, Any]:
        """Return the place of the pass, with the states of all sources."""
        return {
            **self._mixing.state(self._epoch, self._changes),
            "position": self._position,
            "stopped": self._stopped,
            "feeds": [feed.state() for feed in self._feeds],
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go to the place of a state.

        Raises:
            StateError: It is the state of another mixture.
        """
        mixing = self._mixing
        self._begin(*mixing.restored(state, self._changes))
        try:
            self._position, self._stopped = (
                operator.index(state["position"]),
                bool(state["stopped"]),
            )
            feeds = dict(zip(state["sources"], state["feeds"], strict=True))
        except (KeyError, TypeError, ValueError) as error:
            msg = f"the state of the mixture is incomplete or changed: {error!r}"
            raise StateError(msg) from None
        for name, feed in zip(mixing.names, self._feeds, strict=True):
            if name in feeds:
                feed.load(feeds[name])


class _StreamFeed:
    """The samples of an iterable source.

    Args:
        name: For errors.
        source: The worker's own copy.  One with a ``shard(rank, world_size, epoch)`` is asked for
            its part; other iterable datasets of torch's know their worker themselves; of any other
            iterable each part keeps every n-th sample.
        part: Is read, with the epoch of the mixture.
        broken_off: See `SourcePass`.

    Threads:
        all: one thread, the worker that owns it.
    """

    def __init__(self, name: str, source: Any, part: Part, broken_off: _BrokenOff) -> None:
        self._name, self._source, self._part = name, source, part
        self._broken_off = broken_off
        # Whether the source knows nothing of parts, and there are several.
        self._strided = part.parts > 1 and not (
            is_askable(source) or isinstance(source, IterableDataset)
        )
        self.passes = 0
        self._given = 0  # samples of this pass
        self._pass: SourcePass | None = None
        self._samples: Iterator[Any] = iter(())  # of the pass, those of this part
        self._restored: Mapping[str, Any] | None = None  # to begin from

    def next(self) -> Any:
        """Return the next sample.

        Raises:
            StopIteration: The pass is over.
            Exception: The source's own; the next call goes on after it.
        """
        if self._pass is None:
            self._begin()
        sample = next(self._samples)
        self._given += 1
        return sample

    def _begin(self) -> None:
        state = self._restored or {"given": 0}
        states = state.get("states", {})
        begun = SourcePass(
            f"mixture's source {self._name!r}",
            self._source,
            part=self._part._replace(epoch=self._part.epoch + self.passes),
            passes=self.passes,
            states=states,
            broken_off=self._broken_off,
        )
        self._samples = begun
        if self._strided:
            self._samples = islice(begun, self._part.number, None, self._part.parts)
        if not states:
            self._skip(state["given"])
        self._pass, self._restored = begun, None

    def _skip(self, count: int) -> None:
        for number in range(count):
            if next(self._samples, self) is self:
                msg = (
                    f"source {self._name!r} ended after {number} samples, and had given {count} of "
                    "this pass when the state was saved"
                )
                raise StateError(msg)

    def begin_again(self) -> None:
        """Begin another pass.

        Raises:
            ValueError: The last one gave nothing.
        """
        if not self._given:
            msg = (
                f"source {self._name!r} has no sample for part {self._part.number} of "
                f"{self._part.parts}, and has a weight: it needs at least as many shards as "
                "there are workers in all ranks"
            )
            raise ValueError(msg)
        if self._pass is not None:
            self._pass.end()
        self._pass, self._samples = None, iter(())
        self.passes += 1
        self._given = 0

    def state(self) -> dict[str, Any]:
        """Return the place of the source."""
        if self._restored is not None:
            return dict(self._restored)
        state: dict[str, Any] = {"pass": self.passes, "given": self._given}
        if self._pass is not None and not self._strided:
            states = self._pass.states()
            if states:
                state["states"] = states
        return state

    def load(self, state: Mapping[str, Any]) -> None:
        """Go to the place of a state."""
        self.passes, self._given = int(state["pass"]), int(state["given"])
        self._pass = None
        self._restored = state if self._given or "states" in state else None


class _SampleFeed:
    """The samples of a map-style source: the parts take them in turn, by `SourceOrder`.

    Args:
        name: For errors.
        source: The worker's own copy.
        number: Of the source in ``order``.
        length: Its samples.
        part: Is read.
        order: Of all map-style sources.

    Threads:
        all: one thread, the worker that owns it.
    """

    def __init__(
        self,
        name: str,
        source: Any,
        number: int,
        length: int,
        part: Part,
        order: SourceOrder,
    ) -> None:
        self._name, self._source, self._number = name, source, number
        self._length, self._order = length, order
        self._turn, self._step = part.number, part.parts  # of the source, over all
        self.passes = 0
        self._indices: Iterator[int] = iter(())

    def next(self) -> Any:
        """Return the next sample; see `_StreamFeed.next`."""
        if self._turn >= (self.passes + 1) * self._length:
            raise StopIteration
        index = next(self._indices, None)
        if index is None:
            turns = self._turn + self._step * np.arange(_TURNS)
            indices = self._order.indices(np.full(_TURNS, self._number), turns)
            self._indices = iter(indices.tolist())
            index = next(self._indices)
        self._turn += self._step
        source = f"the mixture's source {self._name!r}"
        return called(self._source.__getitem__, index, f"reading sample {index}", source)

    def begin_again(self) -> None:
        """Begin another pass."""
        self.passes = max(self.passes + 1, self._turn // self._length)

    def state(self) -> dict[str, Any]:
        """Return the place of the source."""
        return {"turn": self._turn, "pass": self.passes}

    def load(self, state: Mapping[str, Any]) -> None:
        """Go to the place of a state."""
        self._turn, self.passes = int(state["turn"]), int(state["pass"])
        self._indices = iter(())
