"""Mixture: several map-style datasets as one, each by its weight.

A position says all: which source has its turn there, and which of its samples comes.  So the order
needs no state, whoever asks for which positions, in whatever order.
"""

from __future__ import annotations

import operator
from typing import TYPE_CHECKING, Any

from threadloader import _torch
from threadloader.datasets._mixture.plan import Mixing, Plan, check_changing, checked_count
from threadloader.datasets._mixture.saved import check_saved, merged_changes, saved_state
from threadloader.datasets._mixture.sources import (
    Sources,
    check_not_empty,
    is_map_style,
    length_of,
    tagged,
)
from threadloader.datasets._mixture.weights import checked_weights

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from threadloader.datasets._mixture.stopping import Stop

__all__ = ["Mixture"]

_FEWEST, _MOST = 32, 2048  # positions that are looked up at once: 0.05 to 0.2 ms, 100 KiB
_KEPT = 8  # spans, where several threads use one mixture in turn

# The number of a plan, two positions, and the sources and indices from one to the other.
_Span = tuple[int, int, int, list[int], list[int]]


class _Shared:
    """The state that all copies of a mixture in one process share."""

    __slots__ = ("asked", "number", "plan")

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        # Of the plan; set after it.  All threads compare it for each sample: a small number has no
        # reference count that they would share.
        self.number = 0
        # About the furthest position of the plan's sequence that was asked for.  Two threads may
        # overwrite each other's: it only serves to find a mistake.
        self.asked = -1

    def __deepcopy__(self, memo: dict[int, Any]) -> _Shared:
        return self


class Mixture:
    """Samples of several datasets, each as often as its weight says.

    It is a map-style dataset: load it with ``shuffle=False``, which is its own, mixed order.  With
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
            found = Sources.of(sources)
            if not all(map(is_map_style, found.names, found.datasets)):
                from threadloader.datasets._mixture.mixture_stream import (  # noqa: PLC0415  # rare
                    MixtureStream,
                )

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
        self.names, self._datasets, weights = Sources.of(sources)
        self._with_source = with_source
        lengths = self._lengths()
        check_not_empty(self.names, lengths, weights)
        mixing = Mixing(self.names, lengths, weights, seed, stop, length, shuffle)
        self._shared = _Shared(Plan(mixing, 0))
        # One call for all of a source's samples in a batch is worth a batch in one worker only
        # where it is for every source.
        self._whole_batches = all(map(_torch.gives_whole_batches, self._datasets))
        self._forget()

    def _forget(self) -> None:
        """Look up the next sample anew."""
        # Both are replaced whole.  A span that another thread overwrites is computed again.
        self._span: _Span = (-1, 0, 0, [], [])  # that was used last
        self._spans: tuple[_Span, ...] = ()  # of some sequences of positions, the latest first

    def __getstate__(self) -> dict[str, Any]:
        spans = ("_span", "_spans")
        return {name: value for name, value in vars(self).items() if name not in spans}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self._forget()  # a worker's copy has spans of its own: each works elsewhere

    def __len__(self) -> int:
        return self._shared.plan.length

    def __getitem__(self, position: int) -> Any:
        """Return the sample at a position.

        Raises:
            IndexError: The position is out of range.
        """
        number, first, stop, sources, indices = self._span
        if not first <= position < stop or number != self._shared.number:
            first, sources, indices = self._look_up(position)
        place = position - first
        source = sources[place]
        try:
            sample = self._datasets[source][indices[place]]
        except Exception as error:
            self._note(error, source, f"sample {indices[place]}")
            raise
        if self._with_source is False:
            return sample
        return tagged(sample, source, self._with_source)

    @property
    def __getitems__(self) -> Callable[[Sequence[int]], list[Any]] | None:
        """The samples at several positions, by a call for each source; None if one has no such."""
        return self._samples if self._whole_batches else None

    def _samples(self, positions: Sequence[int]) -> list[Any]:
        rows: dict[int, list[int]] = {}
        wanted: dict[int, list[int]] = {}
        for row, position in enumerate(positions):
            source, index = self._found(position)
            rows.setdefault(source, []).append(row)
            wanted.setdefault(source, []).append(index)
        samples: list[Any] = [None] * len(positions)
        for number, found in wanted.items():
            try:
                given = self._datasets[number].__getitems__(found)
            except Exception as error:
                self._note(error, number, f"samples {found[:3]} ...")
                raise
            if len(given) != len(found):
                msg = (
                    f"source {self.names[number]!r} was asked for {len(found)} samples, and its "
                    f"__getitems__ returned {len(given)}"
                )
                raise ValueError(msg)
            for row, sample in zip(rows[number], given, strict=True):
                if self._with_source is not False:
                    sample = tagged(sample, number, self._with_source)  # noqa: PLW2901
                samples[row] = sample
        return samples

    def _found(self, position: int) -> tuple[int, int]:
        """Return the number of the source at a position, and the index in it."""
        number, first, stop, sources, indices = self._span
        if not first <= position < stop or number != self._shared.number:
            first, sources, indices = self._look_up(position)
        return sources[position - first], indices[position - first]

    def _look_up(self, position: int) -> tuple[int, list[int], list[int]]:
        """Return a span with a position: where it begins, its sources and its indices.

        A negative position counts from the end; the span begins there then.
        """
        number = (
            self._shared.number
        )  # before the plan: if another one comes, this is the old number
        plan, asked = self._shared.plan, operator.index(position)
        position = asked + plan.length if asked < 0 else asked
        if not 0 <= position < plan.length:
            msg = f"a mixture of {plan.length} samples has none at {asked}"
            raise IndexError(msg)
        spans = self._spans
        rows = max(1, (spans[0][2] - spans[0][1]) // 2) if spans else _FEWEST
        for span in spans:
            before, first, stop, sources, indices = span
            if before != number:
                spans, rows = (), _FEWEST
                break
            if first <= position < stop:
                self._span = span
                return first - position + asked, sources, indices
            if 0 <= position - stop < _MOST // 2:
                # It goes on there, perhaps behind the parts of other threads and ranks: all at once
                # cost 1 us for each that one of 8 ranks uses, and its own 4 us.
                spans, rows = tuple(other for other in spans if other is not span), 2 * len(indices)
                break
        sources, indices = plan.span(position, min(rows, _MOST))
        self._span = span = number, position, position + len(indices), sources, indices
        self._spans = (span, *spans[: _KEPT - 1])
        self._shared.asked = max(self._shared.asked, plan.start + position)
        return asked, sources, indices

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
        plan, epoch = self._shared.plan, checked_count("epoch", epoch)
        for dataset in self._datasets:
            if callable(getattr(dataset, "set_epoch", None)):
                dataset.set_epoch(epoch)
        self._check_lengths(plan.mixing)
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
        plan, at = self._shared.plan, checked_count("at", at)
        mixing = plan.mixing
        check_changing(mixing.stop)
        changed = checked_weights(weights, self.names)
        check_not_empty(self.names, mixing.lengths, changed)
        if at <= self._shared.asked:
            msg = (
                f"the weights can't change at position {at}: position {self._shared.asked} was "
                "loaded already. Loaders work some batches ahead of your loop; choose a position "
                "far enough ahead, or set the weights before the first epoch"
            )
            raise ValueError(msg)
        changes = tuple(change for change in plan.changes if change[0] < at)
        if changes != plan.changes and plan.changes[-1][0] != at:
            msg = f"the weights change at position {plan.changes[-1][0]}, which is after {at}"
            raise ValueError(msg)
        self._replan(Plan(mixing, plan.epoch, (*changes, (at, changed))))

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
        plan = self._shared.plan
        return saved_state(plan.mixing, plan.epoch, plan.changes)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on with the epoch and the weights of a state.

        Changes of the weights that come later than those of the state stay.

        Raises:
            StateError: It is the state of another mixture.
        """
        plan = self._shared.plan
        saved = check_saved(state, plan.mixing)
        changes = merged_changes(saved, plan.changes, self.names)
        if (saved["epoch"], changes) != (plan.epoch, plan.changes):
            self._replan(Plan(plan.mixing, saved["epoch"], changes))

    def _replan(self, plan: Plan) -> None:
        shared = self._shared
        if plan.start != shared.plan.start or plan.epoch != shared.plan.epoch:
            shared.asked = -1 if plan.mixing.length is None else plan.start - 1
        shared.plan = plan
        shared.number += 1

    def _lengths(self) -> tuple[int, ...]:
        return tuple(map(length_of, self.names, self._datasets))

    def _check_lengths(self, mixing: Mixing) -> None:
        for name, before, now in zip(self.names, mixing.lengths, self._lengths(), strict=True):
            if before != now:
                msg = f"source {name!r} had {before} samples, and now has {now}: mix them anew"
                raise ValueError(msg)

    def __repr__(self) -> str:
        plan = self._shared.plan
        total = sum(plan.mixing.weights)
        shares = zip(self.names, plan.mixing.weights, strict=True)
        told = ", ".join(f"{name} {weight / total:.2%}" for name, weight in shares)
        end = "without end" if plan.length >= 1 << 62 else f"{plan.length:,} samples"
        return f"Mixture: {end}, of {told}"
