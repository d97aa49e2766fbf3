"""Mixture: several map-style datasets as one, each by its weight.

A position says all: which source has its turn there, and which of its samples comes.  So the order
needs no state, whoever asks for which positions, in whatever order.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from threadloader._authors import gives_whole_batches
from threadloader.datasets._mixture.plan import (
    ENDLESS,
    Mixing,
    Plan,
    checked_weights,
    is_map_style,
    tagged,
    taken_apart,
    tell_epoch,
)
from threadloader.datasets._shards.stream import Shared
from threadloader.errors import checked_count, checked_index

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from threadloader.datasets._mixture.plan import Stop


# The number of a plan, two positions, and the sources and indices from one to the other.
_Span = tuple[int, int, int, list[int], list[int]]
_NOTHING: _Span = (-1, 0, 0, [], [])


class Mixture:
    """Samples of several datasets, each as often as its weight says.

    It is a map-style dataset: load it with ``shuffle=False``, as its own order is mixed.  With
    an iterable source it is a `MixtureStream`.

    Args:
        sources: ``{name: (dataset, weight)}``; weights have any sum.
        seed: Decides the order, together with the number given to `set_epoch`.
        stop: ``"first"`` ends before a source would have to repeat a sample; ``"all"`` when each
            source gave all its samples, and repeats those of the others meanwhile; ``"once"`` in
            the same place, but without repeating any; ``"repeat"`` repeats all, for ``length``
            samples, or without an end.
        length: Samples in an epoch of ``stop="repeat"``.  An epoch goes on with each source where
            the epoch before ended.
        shuffle: Whether a source's samples come in a new random order in each of its passes.
        with_source: True adds the source's number: ``(sample, number)``.  A string adds it to
            samples that are dicts, by that name.

    Raises:
        TypeError: A source is no dataset, or has no length.
        ValueError: A weight is negative, infinite or NaN, all are 0, or a source is empty.

    Threads:
        set_epoch, set_weights, state_dict, load_state_dict: consumer, between two epochs;
        all else: any.
    """

    __module__ = "threadloader.datasets"  # its public place, which pickles name

    def __new__(cls, sources: Any = None, *_args: Any, **options: Any) -> Any:
        """Return a `MixtureStream` for sources of which one is iterable."""
        if cls is Mixture and sources is not None:
            names, datasets, _ = taken_apart(sources)
            if not all(map(is_map_style, names, datasets)):
                from threadloader.datasets._mixture.stream import MixtureStream  # noqa: PLC0415  # rare

                return MixtureStream(sources, **options)
        return object.__new__(cls)

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
        self._with_source = with_source
        lengths = self._lengths()
        checked = checked_weights(weights, self.names, lengths)
        mixing = Mixing(self.names, lengths, checked, seed, stop, length, shuffle)
        # The number is the plan's, set after it.  All threads compare it for each sample: a small
        # one has no reference count that they would share.  `asked` is about the furthest position
        # of the plan's sequence that was asked for; two threads may overwrite each other's: it only
        # serves to find a mistake.
        self._shared = Shared(plan=Plan(mixing, 0), number=0, asked=-1)
        # One call for all of a source's samples in a batch is worth a batch in one worker only
        # where it is for every source.
        self._whole_batches = all(map(gives_whole_batches, self._datasets))
        self._span = _NOTHING  # that was used last; replaced whole

    def __getstate__(self) -> dict[str, Any]:
        # A worker's copy has a span of its own: each works elsewhere.
        return vars(self) | {"_span": _NOTHING}

    def __len__(self) -> int:
        plan: Plan = self._shared.plan
        return plan.length

    def __getitem__(self, position: int) -> Any:
        """Return the sample at a position.

        Raises:
            IndexError: The position is out of range.
        """
        source, index = self._found(position)
        try:
            sample = self._datasets[source][index]
        except Exception as error:
            self._note(error, source, f"sample {index}")
            raise
        return tagged(sample, source, self._with_source)

    @property
    def __getitems__(self) -> Callable[[Sequence[int]], list[Any]] | None:
        """The samples at several positions, by a call for each source; None if one has no such."""
        return self._samples if self._whole_batches else None

    def _samples(self, positions: Sequence[int]) -> list[Any]:
        found = [self._found(position) for position in positions]
        samples: list[Any] = [None] * len(found)
        for number in {source for source, _ in found}:
            rows = [row for row, (source, _) in enumerate(found) if source == number]
            indices = [found[row][1] for row in rows]
            try:
                given = self._datasets[number].__getitems__(indices)
                for row, sample in zip(rows, given, strict=True):
                    samples[row] = tagged(sample, number, self._with_source)
            except Exception as error:
                self._note(error, number, f"samples {indices[:3]} ...")
                raise
        return samples

    def _found(self, position: int) -> tuple[int, int]:
        """Return the number of the source at a position, and the index in it."""
        number, first, stop, sources, indices = self._span
        if not first <= position < stop or number != self._shared.number:
            position = checked_index(position, len(self), "samples")
            _, first, _, sources, indices = self._span = self._look_up(position)
        return sources[position - first], indices[position - first]

    def _look_up(self, position: int) -> _Span:
        """Return a span that has a position."""
        shared = self._shared
        number = shared.number  # before the plan: if another one comes, this is the old number
        plan = shared.plan
        shared.asked = max(shared.asked, plan.start + position)
        return number, *plan.span(position)

    def _note(self, error: Exception, number: int, what: str) -> None:
        length = self._shared.plan.mixing.lengths[number]
        error.add_note(
            f"in the mixture's source {self.names[number]!r}: {what} of {length}, which was its "
            "length when the mixture was made"
        )

    def set_epoch(self, epoch: int) -> None:
        """Set which epoch comes next: each has another order.

        It is also set on each source that has a ``set_epoch``.

        Raises:
            ValueError: The length of a source has changed.
        """
        plan, epoch = self._shared.plan, tell_epoch(self._datasets, epoch)
        for name, before, now in zip(self.names, plan.mixing.lengths, self._lengths(), strict=True):
            if before != now:
                msg = f"source {name!r} had {before} samples, and now has {now}: mix them anew"
                raise ValueError(msg)
        if epoch != plan.epoch:
            self._replan(Plan(plan.mixing, epoch, plan.changes))

    def set_weights(self, weights: Mapping[str, float], *, at: int) -> None:
        """Change the weights from a position on; samples before it stay as they are.

        Args:
            weights: Of all sources, by name.
            at: The position.  With a ``length`` it is counted from the beginning of epoch 0: in
                epoch e position i is ``e * length + i``.

        Raises:
            ValueError: A weight is negative or NaN, a name is unknown, all weights are 0, the
                position was loaded already, or the mixture ends with its sources.
        """
        plan = self._shared.plan
        changes = plan.mixing.changed(plan.changes, weights, at)
        if at <= self._shared.asked:
            msg = (
                f"the weights can't change at position {at}: position {self._shared.asked} was "
                "loaded already. Loaders work some batches ahead of your loop; choose a position "
                "far enough ahead, or set the weights before the first epoch"
            )
            raise ValueError(msg)
        self._replan(Plan(plan.mixing, plan.epoch, changes))

    def source_of(self, position: int) -> tuple[str, int]:
        """Return the name of the source at a position of this epoch, and the index in it."""
        source, index = self._found(position)
        return self.names[source], index

    def counts(self, position: int | None = None) -> dict[str, int]:
        """Return how many samples of each source are before a position of this epoch.

        After n batches of a loader that is ``batch_size`` times n, for each rank.

        Args:
            position: None for the whole epoch.
        """
        plan = self._shared.plan
        position = plan.length if position is None else checked_count("position", position)
        return dict(zip(self.names, plan.counts(min(position, plan.length)), strict=True))

    def state_dict(self) -> dict[str, Any]:
        """Return the epoch and the weights; a loader's state has them in it."""
        plan: Plan = self._shared.plan
        return plan.mixing.state(plan.epoch, plan.changes)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on with the epoch and the weights of a state.

        Changes of the weights that come later than those of the state stay.

        Raises:
            StateError: It is the state of another mixture.
        """
        plan = self._shared.plan
        epoch, changes = plan.mixing.restored(state, plan.changes)
        if (epoch, changes) != (plan.epoch, plan.changes):
            self._replan(Plan(plan.mixing, epoch, changes))

    def _replan(self, plan: Plan) -> None:
        shared = self._shared
        if plan.start != shared.plan.start or plan.epoch != shared.plan.epoch:
            shared.asked = -1 if plan.mixing.length is None else plan.start - 1
        shared.plan = plan
        shared.number += 1

    def _lengths(self) -> tuple[int, ...]:
        return tuple(map(len, self._datasets))

    def __repr__(self) -> str:
        plan = self._shared.plan
        end = "without end" if plan.length >= ENDLESS else f"{plan.length:,} samples"
        return f"Mixture: {end}, of {plan.mixing}"
