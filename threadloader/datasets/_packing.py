"""pack: sequences of an iterable, packed into rows of one length; and its state.

    source ──▶ sequences ──▶ open rows ──▶ closed rows ──▶ one dict a row

A state has no samples.  It has the source's state before the first sample that is still in a row,
and the room that was in the rows open there: all of these rows were delivered since.  So reading
from there on, with rows that have no samples, finds the same rows again.

A sequence goes into the first of some open rows that has room for it.  That depends on lengths
alone.  If no open row has room and there are as many as may be, the one that was opened first is
closed: so a sequence waits for a bounded number of rows.

Source: first fit, as in Johnson et al., "Worst-case performance bounds for simple one-dimensional
packing algorithms", SIAM J. Comput. 1974, over a window of rows.
"""

from __future__ import annotations

import copy
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, get_args

import numpy as np
from numpy.typing import NDArray

from threadloader._authors import IterableDataset, Part, SourcePass, asked, states_between
from threadloader.errors import StateError, checked_count

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator


TooLong = Literal["error", "truncate", "split", "drop"]
Piece = dict[str, NDArray[Any]]  # one sequence, or a part of one: its features

_UNNAMED = "input_ids"  # the feature of a sample that is one sequence
_ADDED = ("position_ids", "segment_ids")
_VERSION = 3
_PLACE = ("source", "at", "free", "drawn", "items", "rows")  # in a state in the midst of a pass
_EVERY = 32  # samples from one state of the source to the next
_MOST_ERRORS = 100  # of the source, while samples that were packed are read again
_LABELS = MappingProxyType({"labels": -100})  # what losses of torch and transformers leave out


def pack(
    samples: Iterable[Any],
    length: int,
    *,
    window: int = 32,
    features: Sequence[str] | None = None,
    too_long: TooLong = "error",
    padding: Mapping[str, Any] = _LABELS,
) -> Packed:
    """Return an iterable of rows of one length, each with as many sequences as fit.

    A row is a dict with an array for each feature, ``position_ids`` (from 0 in each sequence) and
    ``segment_ids`` (from 1 in each row, 0 for padding).  No sequence is cut, unless you choose it.
    Empty samples are left out.

    Args:
        samples: An iterable, whose samples are sequences (arrays, tensors, lists), or mappings of
            some.  A sequence alone becomes the feature ``input_ids``.
        length: Of a row.  All features of a sample must be as long as one another.
        window: Rows that are filled at a time.  More rows have less padding and more mixed samples.
        features: Those that are packed, if samples have others; None for all.
        too_long: A sample longer than a row is an ``"error"``, loses its end (``"truncate"``), is
            cut into several sequences (``"split"``), or is left out (``"drop"``).
        padding: Value of the empty places, by feature; 0 for other features.

    Raises:
        TypeError: The samples can't be iterated over, or an argument has a wrong type.
        ValueError: An argument is out of its range.
    """
    if not hasattr(samples, "__iter__"):
        advice = ""
        if hasattr(samples, "__getitem__"):
            advice = ": pack(ThreadLoader(dataset, batch_size=None, shuffle=True), ...) reads it"
        msg = f"pack needs an iterable, but got {type(samples).__name__}{advice}"
        raise TypeError(msg)
    window = checked_count("window", window, at_least=1)
    chosen = Features(length, features, too_long, padding)
    kind = PackedReplica if isinstance(samples, IterableDataset) else Packed
    return kind(samples, chosen, window)


class Packed:
    """Rows that are packed from the samples of an iterable; made by `pack`.

    Args:
        samples: The source.
        features: What is packed.
        window: Rows that are open at a time.

    Threads:
        all: one thread, the worker that owns it.
    """

    def __init__(self, samples: Iterable[Any], features: Features, window: int) -> None:
        self.samples = samples
        self._features = features
        self._window = window
        self._pass: _Pass | None = None  # the last one
        self._loaded: Mapping[str, Any] | None = None  # a state, for the next pass

    def __iter__(self) -> Iterator[dict[str, NDArray[Any]]]:
        loaded, self._loaded = self._loaded, None
        self._pass = _Pass(self.samples, self._features, self._window, loaded)
        return self._pass

    def shard(self, rank: int, world_size: int, epoch: int) -> Packed | None:
        """Return the rows of a part of the samples, whose own ``shard`` is asked for it.

        A `ThreadLoader` with ``shard=`` calls it.

        Args:
            rank: Of the part.
            world_size: Number of parts.
            epoch: Its number, from 0.

        Returns:
            None if the samples share themselves out.

        Raises:
            TypeError: The samples have no ``shard``.
        """
        part = asked(self.samples, Part(rank, world_size, epoch))
        if part is None:
            return None
        twin = copy.copy(self)
        vars(twin).update(samples=part, _pass=None)
        self._loaded = None
        return twin

    def state_dict(self) -> dict[str, Any]:
        """Return the place of the last pass: that of the source, and about 300 bytes."""
        if self._loaded is not None:
            place = dict(self._loaded)
        elif self._pass is not None:
            place = self._pass.state()
        else:
            place = {"ended": True, "source": states_between(self.samples)}
        return {"version": _VERSION, **self._settings(), **copy.deepcopy(place)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Let the next pass go on from a state.

        Samples that are in rows which were not delivered are read again; all from the beginning on,
        if the source has no state.

        Raises:
            StateError: It is no state of `pack`, or one of rows of another length or window.  Also
                raised by the first ``next()``, if the source does not give the same samples again.
        """
        if state.get("version") != _VERSION:
            msg = f"the state has version {state.get('version')}, and {_VERSION} can be read"
            raise StateError(msg)
        try:
            for name, value in self._settings().items():
                if state[name] != value:
                    msg = f"the state is of {name}={state[name]}, not {value}"
                    raise StateError(msg)
            if state.get("ended"):
                self._loaded = {"ended": True, "source": state["source"]}
            else:
                self._loaded = {name: state[name] for name in _PLACE}
        except KeyError as error:
            msg = f"the state is incomplete: it has no {error.args[0]}"
            raise StateError(msg) from None

    def _settings(self) -> dict[str, Any]:
        return {"length": self._features.length, "window": self._window}


class PackedReplica(Packed, IterableDataset[Any]):
    """The same over an iterable dataset of torch's, which gives each worker its share."""


class _Checkpoint(NamedTuple):
    """Where a pass was, between two samples of its source."""

    drawn: int  # samples
    closed: int  # rows
    items: int  # in these samples
    free: list[int]  # room in the rows that were open
    states: dict[str, Any]  # of the source and its iterator, by role


class _Pass:
    """One pass over the rows; an iterator.

    Args:
        samples: The source.
        features: What is packed.
        window: Rows that are open at a time.
        loaded: Where to begin, as `state` returned it; None for the beginning.
    """

    def __init__(
        self,
        samples: Any,
        features: Features,
        window: int,
        loaded: Mapping[str, Any] | None,
    ) -> None:
        self._features = features
        self._window = window
        self._rows = OpenRows(features.length, window)
        self._drawn = 0
        self._items = 0
        self._delivered = 0
        self._ended = False  # whether the source has given all
        self._finished = False  # and all rows were delivered
        self._replay: Mapping[str, Any] | None = None  # a state that the first row is found by
        place = loaded or {"source": {}}
        ended = bool(place.get("ended"))
        if loaded is not None and not ended:
            self._replay = loaded
        self._source = SourcePass("source", samples, states=place["source"], ended=ended)
        self._checkpoints: deque[_Checkpoint] = deque()

    def __iter__(self) -> _Pass:
        return self

    def __next__(self) -> dict[str, NDArray[Any]]:
        """Return the next row.

        Raises:
            ValueError: A sample is too long, or not like the others; the next call goes on after
                it.
            StateError: The source does not give the samples of the loaded state.
        """
        if self._replay is not None:
            self._read_again(self._replay)
        rows = self._rows
        while not rows.closed:
            if not self._draw() and not rows.close_first():
                self._finished = True
                raise StopIteration
        row = rows.closed.popleft()
        self._delivered += 1  # also one that can't be put together
        return self._features.row_of(row.pieces)

    def state(self) -> dict[str, Any]:
        """Return the place of the pass."""
        if self._replay is not None:
            return dict(self._replay)
        if self._finished:
            return {"ended": True, "source": self._source.states()}
        self._forget()
        start = self._checkpoints[0] if self._checkpoints else self._checkpoint()
        return {
            "source": start.states,
            "at": start.drawn,
            "free": start.free,
            "drawn": self._drawn - start.drawn,
            "items": self._items - start.items,
            "rows": self._delivered - start.closed,
        }

    def _draw(self) -> bool:
        """Put the source's next sample into a row; return False if it has none."""
        if self._ended:
            return False
        if self._drawn % _EVERY == 0 or not self._checkpoints:
            self._forget()
            checkpoint = self._checkpoint()
            if checkpoint.states or not self._checkpoints:  # without, all is read again
                self._checkpoints.append(checkpoint)
        try:
            sample = next(self._source)
        except StopIteration:
            self._ended = True
            return False
        self._add(sample)
        return True

    def _add(self, sample: Any) -> None:
        number = self._drawn
        self._drawn += 1  # also if it can't be packed
        for piece in self._features.pieces_of(sample, number):
            self._items += length_of(piece)
            self._rows.add(piece, number)

    def _checkpoint(self) -> _Checkpoint:
        closed = self._delivered + len(self._rows.closed)
        return _Checkpoint(self._drawn, closed, self._items, self._rows.free, self._source.states())

    def _forget(self) -> None:
        """Forget all checkpoints that another one makes needless."""
        opened = self._rows.opened()
        needed = self._drawn if opened is None else opened
        kept = self._checkpoints
        while len(kept) > 1 and kept[1].drawn <= needed:
            kept.popleft()

    def _read_again(self, state: Mapping[str, Any]) -> None:
        """Find the rows that were open, or closed and not delivered."""
        self._drawn, self._items, self._delivered = state["at"], 0, 0
        self._rows = rows = OpenRows(self._features.length, self._window, state["free"])
        states = dict(state["source"])
        self._checkpoints = deque([_Checkpoint(self._drawn, 0, 0, rows.free, states)])
        errors, stop = 0, self._drawn + state["drawn"]
        while self._drawn < stop:
            try:
                self._add(next(self._source))
            except StopIteration:
                break  # what is missing is found out below
            except Exception:
                # It was raised before the state was saved, too.  A limit, lest it be for ever.
                errors += 1
                if errors > _MOST_ERRORS:
                    raise
            while rows.closed and self._delivered < state["rows"]:
                rows.closed.popleft()
                self._delivered += 1
        while self._delivered < state["rows"] and rows.close_first():
            rows.closed.popleft()
            self._delivered += 1
        opened = rows.opened()
        if self._items != state["items"] or self._delivered != state["rows"] or opened == -1:
            msg = "the source gives other samples than when the state was saved"
            raise StateError(msg)
        self._replay = None


class Features:
    """What is packed of a sample, and into how long rows.

    Args:
        length: Of a row.
        names: The features; None for all of the sample.
        too_long: What becomes of a sample that is longer than a row.
        padding: Value of the places that are left, for each feature; 0 for those that are missing.

    Raises:
        TypeError: ``names`` is no list, or ``length`` no whole number.
        ValueError: An argument is out of its range.
    """

    def __init__(
        self,
        length: int,
        names: Sequence[str] | None,
        too_long: TooLong,
        padding: Mapping[str, Any],
    ) -> None:
        if too_long not in get_args(TooLong):
            msg = f"too_long must be one of {get_args(TooLong)}, but got {too_long!r}"
            raise ValueError(msg)
        if isinstance(names, str):
            msg = f"features must be a list of names, but got {names!r}"
            raise TypeError(msg)
        self.length = checked_count("length", length, at_least=1)
        self._names = names and tuple(names)
        self._too_long = too_long
        self._padding = padding

    def pieces_of(self, sample: Any, number: int) -> list[Piece]:
        """Return the sequences that a sample is packed as.

        Args:
            sample: A sequence, or a mapping of some.
            number: Of the sample, for errors.

        Raises:
            KeyError: A feature is missing.
            TypeError: A feature is no sequence of numbers.
            ValueError: The sample is too long, or its features differ in length.
        """
        piece = self._arrays_of(sample, number)
        if len({len(array) for array in piece.values()}) > 1:
            told = ", ".join(f"{name} {len(array)}" for name, array in piece.items())
            msg = (
                f"the features of sample {number} differ in length ({told}): choose those that "
                "are packed side by side, with features=[...]"
            )
            raise ValueError(msg)
        length, most = length_of(piece), self.length
        if length <= most:
            return [piece] if length else []
        if self._too_long == "error":
            msg = (
                f"sample {number} has length {length}, more than a row's {most}: "
                "choose too_long='truncate', 'split' or 'drop'"
            )
            raise ValueError(msg)
        stop = {"truncate": most, "split": length, "drop": 0}[self._too_long]
        return [
            {name: array[start : start + most] for name, array in piece.items()}
            for start in range(0, stop, most)
        ]

    def row_of(self, pieces: Sequence[Piece]) -> dict[str, NDArray[Any]]:
        """Return a row: each feature, and where its sequences are.

        Raises:
            ValueError: Two sequences don't go together, or the padding is no value of a feature.
        """
        row: dict[str, NDArray[Any]] = {}
        for name in pieces[0]:
            row[name] = self._filled(name, [piece[name] for piece in pieces])
        return row | dict(zip(_ADDED, _ids(list(map(length_of, pieces)), self.length), strict=True))

    def _arrays_of(self, sample: Any, number: int) -> Piece:
        if not isinstance(sample, Mapping):
            if self._names not in (None, (_UNNAMED,)):
                msg = f"sample {number} is no mapping: it has no features {', '.join(self._names)}"
                raise TypeError(msg)
            return {_UNNAMED: _array(_UNNAMED, sample, number)}
        names = self._names
        if names is None:
            names = tuple(sample)
            added = [name for name in _ADDED if name in sample]
            if added or not names:
                told = f"has {', '.join(added)}, as a row does" if added else "is empty"
                msg = f"sample {number} {told}: name those to be packed, with features=[...]"
                raise ValueError(msg)
        missing = [name for name in names if name not in sample]
        if missing:
            msg = (
                f"sample {number} has no {', '.join(missing)}: it has {', '.join(map(str, sample))}"
            )
            raise KeyError(msg)
        return {name: _array(name, sample[name], number) for name in names}

    def _filled(self, name: str, arrays: list[NDArray[Any]]) -> NDArray[Any]:
        """Return sequences one after the other, and the padding."""
        shapes = {array.shape[1:] for array in arrays}
        if len(shapes) > 1:
            msg = f"{name} has sequences whose items have different shapes: {sorted(shapes)}"
            raise ValueError(msg)
        padding = np.asarray(self._padding.get(name, 0))
        dtype = np.result_type(*arrays)
        with np.errstate(invalid="ignore"):  # NaN as a whole number
            value = padding.astype(dtype)
        if not np.array_equal(value, padding, equal_nan=padding.dtype.kind == "f"):
            msg = f"{name} has type {dtype}, which can't hold its padding, {padding}"
            raise ValueError(msg)
        filled = np.full((self.length, *shapes.pop()), value)
        items = np.concatenate(arrays)
        filled[: len(items)] = items
        return filled


def length_of(piece: Piece) -> int:
    """Return the length of a sequence, which is that of each feature."""
    return len(next(iter(piece.values())))


def _array(name: str, value: Any, number: int) -> NDArray[Any]:
    try:
        array = np.asarray(value)
    except Exception as error:
        error.add_note(f"in {name} of sample {number}")
        raise
    if array.ndim < 1 or (array.dtype.kind not in "biufc" and array.size):
        msg = (
            f"{name} of sample {number} is no sequence of numbers, but a {type(value).__name__}: "
            "name those to be packed, with features=[...]"
        )
        raise TypeError(msg)
    return array


def _ids(lengths: Sequence[int], length: int) -> tuple[NDArray[Any], NDArray[Any]]:
    """Return each item's place in its sequence, and the number of its sequence, from 1."""
    positions, segments = np.zeros(length, np.int64), np.zeros(length, np.int32)
    start = 0
    for number, size in enumerate(lengths, 1):
        positions[start : start + size] = np.arange(size)
        segments[start : start + size] = number
        start += size
    return positions, segments


@dataclass(slots=True)
class Row:
    """Some sequences that fit into a row together."""

    free: int  # room that is left
    opened: int  # number of the sample that it was opened for; -1 if its samples are not here
    pieces: list[Piece] = field(default_factory=list)


class OpenRows:
    """Rows that have room, in the order in which they were opened.

    Args:
        length: Of a row.
        window: Most rows that are open, at least 1.
        free: Room in rows that are open already, whose samples are not here; see `free`.
    """

    def __init__(self, length: int, window: int, free: Sequence[int] = ()) -> None:
        self.closed: deque[Row] = deque()  # in the order in which they were closed
        self._length, self._window = length, window
        self._rows = [Row(room, -1) for room in free]

    @property
    def free(self) -> list[int]:
        """The room in the open rows, one after the other."""
        return [row.free for row in self._rows]

    def opened(self) -> int | None:
        """Return the first sample that an open or a closed row was opened for; None without any."""
        return min((row.opened for row in (*self._rows, *self.closed)), default=None)

    def add(self, piece: Piece, number: int) -> None:
        """Put a sequence, which is no longer than a row, into a row.

        Args:
            piece: What the row keeps.
            number: Of its sample.
        """
        length = length_of(piece)
        for row in self._rows:
            if row.free >= length:
                break
        else:
            if len(self._rows) == self._window:
                self.close_first()
            row = Row(self._length, number)
            self._rows.append(row)
        row.pieces.append(piece)
        row.free -= length
        if not row.free:
            self._rows.remove(row)
            self.closed.append(row)

    def close_first(self) -> bool:
        """Close the row that was opened first; return False if there is none."""
        if self._rows:
            self.closed.append(self._rows.pop(0))
            return True
        return False
