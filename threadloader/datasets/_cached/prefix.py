"""The deterministic prefix: of a pipeline of transforms, what comes before the first random one.

    read, decode | resize | crop  flip  normalise | label
                 what is kept ^   run anew each time ^ made once

A sample is made by the dataset's own code, in a shallow copy whose pipeline is watched: after which
transform are the sample's random streams, and the generators that the dataset has, no more what
they were?  What that transform was given is kept, with the rest of the sample, in which the
pipeline's results are known by their identity.  That is so of datasets whose code is known; and
transforms are told apart in a Compose whose code is.  Of another pipeline that draws all runs anew.
"""

from __future__ import annotations

import operator
import pickle
import re
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

from threadloader._fetch.generators import Seeding
from threadloader._fetch.own_generators import generators_in
from threadloader._fetch.parts import layout_of, shallow_copy
from threadloader._rng.isolation import redirecting
from threadloader._rng.streams import SampleStream, here
from threadloader.datasets._cached.in_memory import PLAIN, copied, is_same, mapped

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from threadloader.errors import DataError

    Refused = Callable[[str], DataError]  # of the reason
    Path = tuple[str, ...]
    Args = tuple[Any, ...]
    Kwargs = dict[str, Any]


DREW = "drew random numbers, or seeded them"
HIDDEN = "drew random numbers in its transforms, and has not their result as it is"
WHOLE = -1  # in place of the first transform that runs anew: the pipeline does, with all its code
_NONE = 1 << 30  # the same, where none draws
_HOLDERS = ("dataset", "transforms")  # attributes with objects that may have a pipeline
_PIPELINES = ("transform", "transforms")
# Datasets by whose code a sample has the pipeline's result as it is: these modules' and classes.
_MODULES = ("torchvision.datasets.", "threadloader.datasets.")
_DATASETS = ("monai.data.dataset.Dataset", "torch.utils.data.dataset.Subset")
# Pipelines that do nothing but to call their ``transforms``.
_COMPOSED = {
    "monai.transforms.compose.Compose",
    "torchvision.transforms.transforms.Compose",
    "torchvision.transforms.v2._container.Compose",
}
_OTHERWISE = ("lazy", "unpack_items")  # options by which they do more
_ADDRESS = re.compile(" at 0x[0-9A-Fa-f]+")


class Split(NamedTuple):
    """What is kept of a sample: copies, which nobody else has."""

    step: int  # the first transform that runs anew
    calls: tuple[tuple[Args, Kwargs], ...]  # of the pipeline: what that transform is given
    sample: Any  # with a `Hole` for each part that the calls make


class Hole:
    """Stands for a part of a sample that is made anew each time.

    Args:
        call: Of the pipeline that makes it.
        key: Of the part, in what that returns; None for all of it.
    """

    def __init__(self, call: int, key: Any = None) -> None:
        self.call, self.key = call, key

    def __deepcopy__(self, _memo: dict[int, Any]) -> Hole:
        return self


class Prefix:
    """The pipeline of a dataset, and how much of it is kept.  Copies of the dataset share it.

    Args:
        paths: The names of attributes that lead to the pipeline, from the dataset; none if it has
            none, or if nothing random is to be kept.
        told: The pipeline, as it describes itself.

    Threads:
        all: shared.
    """

    def __init__(self, paths: list[Path], told: str = "") -> None:
        self.paths, self._told = paths, told
        self._here = threading.local()  # ``twin``: of the dataset; ``known``: a pipeline, its steps
        self.given_up = False  # only ever becomes True
        # The first transform that was seen to draw, or a later one: threads that set it at the same
        # time may set it back, and the next sample mends that.
        self._first = _NONE

    @staticmethod
    def of(dataset: Any) -> Prefix:
        """Return the one for a dataset."""
        found = _pipelines(dataset)
        if not found:
            return Prefix([])
        first = found[0][1]
        return Prefix([path for path, each in found if each is first], _told(first))

    def __deepcopy__(self, _memo: dict[int, Any]) -> Prefix:
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        return Prefix, (self.paths, self._told)

    def has_changed(self, dataset: Any) -> bool:
        """Whether the dataset has other transforms than it had, or describes them otherwise."""
        pipeline = _at(dataset, self.paths[0])
        known = [pipeline, *_steps(pipeline)]
        before = getattr(self._here, "known", [])
        if len(before) == len(known) and all(map(operator.is_, before, known)):
            return False
        self._here.known = known
        return _told(pipeline) != self._told

    def load(self, dataset: Any, index: int, refused: Refused) -> tuple[Any, Split | None]:
        """Return a sample of the dataset, and what to keep of it; None if that is not known yet.

        Raises:
            DataError: By ``refused``; see `watching`.
        """
        twin = self._twin_of(dataset)
        with watching(refused, twin.generators, self._first) as watch:
            if watch is None:
                return dataset[index], None
            twin.watch = watch
            try:
                sample = twin.dataset[index]
            finally:
                twin.watch = None
        if not self.paths:
            return sample, None
        self._first = min(self._first, watch.first)
        return sample, watch.split(sample)

    def finish(self, dataset: Any, split: Split) -> Any:
        """Return the whole sample: the rest of its transforms run."""
        pipeline = _at(dataset, self.paths[0])
        if split.calls and split.step != WHOLE:
            pipeline = _with_steps(pipeline, _steps(pipeline)[split.step :])
        results = [pipeline(*args, **kwargs) for args, kwargs in split.calls]

        def made(part: Any) -> Any:
            if type(part) is not Hole:
                return part
            return results[part.call] if part.key is None else results[part.call][part.key]

        return mapped(split.sample, made)

    def is_as_loaded(self, dataset: Any, split: Split, index: int) -> tuple[bool, Any]:
        """Return whether a whole sample is as one without a cache; and that one."""
        stream, own = here.stream, self._twin_of(dataset).generators
        if not isinstance(stream, SampleStream):
            return True, self.finish(dataset, split)
        states = [each.state() for each in own]
        sample = self.finish(dataset, split)
        for each, state in zip(own, states, strict=True):
            each.put(state)
        stream.again()
        loaded = dataset[index]
        return is_same(sample, loaded), loaded

    def _twin_of(self, dataset: Any) -> _Twin:
        """Return the calling thread's."""
        twin: _Twin | None = getattr(self._here, "twin", None)
        if twin is None or not twin.is_of(dataset):
            twin = self._here.twin = _Twin(dataset, self.paths)
        return twin


class _Twin:
    """A dataset whose pipeline is watched: a shallow copy, and the user's own is left alone.

    Args:
        original: The dataset.
        paths: The names of attributes that lead to its pipeline; without any it is no copy.

    Threads:
        all: one thread.
    """

    def __init__(self, original: Any, paths: list[Path]) -> None:
        self.generators = [
            Seeding.of(each.generator) for each in generators_in(original)
        ]  # to look for them takes a millisecond
        self.watch: _Watch | None = None  # of the sample that is loaded
        self._original = original
        self._holders: list[tuple[Any, dict[str, Any]]] = []  # and the attributes they had
        copies: dict[Path, Any] = {}
        for path in paths:
            for depth in range(len(path)):
                inner = path[:depth]
                if inner not in copies:
                    holder = _at(original, inner)
                    self._holders.append((holder, dict(vars(holder))))
                    copies[inner] = shallow_copy(holder)
                    if inner:
                        vars(copies[inner[:-1]])[inner[-1]] = copies[inner]
            vars(copies[path[:-1]])[path[-1]] = _Watched(_at(original, path), self)
        self.dataset = copies.get((), original)

    def is_of(self, dataset: Any) -> bool:
        """Whether it is a copy of a dataset as that is now."""
        return dataset is self._original and all(
            len(before) == len(vars(holder))
            and all(vars(holder).get(name, self) is value for name, value in before.items())
            for holder, before in self._holders
        )


@contextmanager
def watching(refused: Refused, own: Sequence[Any], first: int) -> Iterator[_Watch | None]:
    """Watch what the sample draws that the calling thread loads; None outside of a loader.

    Args:
        refused: Makes the error of a sample that draws random numbers, but in a pipeline whose
            results it has as they are.
        own: The generators that the dataset has.
        first: The transform whose arguments are kept.

    Raises:
        DataError: By ``refused``.
    """
    stream = here.stream
    if stream is None:  # draws are nobody's business there
        yield None
        return
    watch = _Watch(stream, refused, own, first)
    here.stream = watch
    try:
        # The calling thread of a loader may draw from torch's default generator.
        with redirecting():
            yield watch
    finally:
        here.stream = stream
    watch.settle()
    watch.check()


class _Watch:
    """What a sample does while it is loaded; as a stream, it draws from the sample's.

    For the arguments see `watching`.

    Threads:
        all: one thread.
    """

    def __init__(self, stream: Any, refused: Refused, own: Sequence[Any], keeps: int) -> None:
        self._stream, self._refused, self._own, self._keeps = stream, refused, own, keeps
        self._at: int | None = None  # the transform that runs; None outside of the pipeline
        self._drew_beside = False
        self._calls: list[Any] = []
        self._results: list[tuple[Any, Any]] = []  # and copies
        self._unknown = False  # whether a part can't be copied
        self.first = _NONE  # the first transform that drew
        self._states = self._own_states()

    def __getattr__(self, name: str) -> Any:
        self._drew()
        return getattr(self._stream, name)

    def _drew(self) -> None:
        if self._at is None:
            self._drew_beside = True
            self.check()
        else:
            self.first = min(self.first, self._at)

    def check(self) -> None:
        """Raise an error if the sample drew elsewhere, and went on after the error."""
        if self._drew_beside:
            raise self._refused(DREW)

    def settle(self) -> None:
        """See whether what ran has drawn from a generator that the dataset has."""
        if self._own:
            states = self._own_states()
            if states != self._states:
                self._drew()
            self._states = states

    def _own_states(self) -> bytes:
        return pickle.dumps([each.state() for each in self._own]) if self._own else b""

    def begins(self, args: Args, kwargs: Kwargs) -> tuple[Args, Kwargs]:
        """Note that the pipeline is called; return what to give it."""
        self.settle()
        self._at = WHOLE
        return self._given(WHOLE, args, kwargs)

    def reached(self, step: int, args: Args, kwargs: Kwargs) -> tuple[Args, Kwargs]:
        """Note that a transform is about to run; return what to give it."""
        self.settle()
        self._at = step
        return self._given(step, args, kwargs)

    def ends(self, result: Any) -> None:
        """Note what the pipeline returned."""
        self.settle()
        self._at = None
        self._results.append((result, self._copied(result) if self.first != _NONE else None))

    def _given(self, step: int, args: Args, kwargs: Kwargs) -> tuple[Args, Kwargs]:
        """Keep what a transform is given, if it is the one; return that, or a copy.

        A copy, so that no result of the pipeline is an object that the sample has anyway.
        """
        if step != self._keeps or step > self.first:
            return args, kwargs
        self._calls.append(self._copied((args, kwargs)))
        return self._copied((args, kwargs)) or (args, kwargs)

    def _copied(self, value: Any) -> Any:
        try:
            return copied(value)
        except Exception:  # noqa: BLE001  # whatever a class raises to refuse
            self._unknown = True
            return None

    def split(self, sample: Any) -> Split | None:
        """Return what to keep of the sample; None if that is not known yet.

        Raises:
            DataError: See `watching`.
        """
        if self.first == _NONE:
            return Split(_NONE, (), copied(sample))
        if self._unknown or self.first < self._keeps or len(self._calls) != len(self._results):
            return None
        sample, holes = self._with_holes(sample)
        calls = set(range(len(self._results)))
        if {hole.call for hole in holes} != calls:
            raise self._refused(HIDDEN)
        if not all(is_same(*each) for each in self._results):
            raise self._refused(HIDDEN)
        if any(map(self._changes_plain, calls - {hole.call for hole in holes if hole.key is None})):
            raise self._refused(HIDDEN)
        return Split(self._keeps, tuple(self._calls), sample)

    def _with_holes(self, sample: Any) -> tuple[Any, list[Hole]]:
        """Return a copy of the sample with holes for what the pipeline made, and these."""
        known, holes = {}, []
        for call, (result, _) in enumerate(self._results):
            for key, part in ((None, result), *_parts(result)):
                if not isinstance(part, PLAIN):
                    known[id(part)] = Hole(call, key)
        sample = copied(sample, known)
        mapped(sample, lambda part: holes.append(part) if type(part) is Hole else None)
        return sample, holes

    def _changes_plain(self, call: int) -> bool:
        """Whether the rest changed a number or text, which has no identity: where did it go?"""
        args, kwargs = self._calls[call]
        given = [*args, *kwargs.values()]
        plain = [part for _, part in _parts(self._results[call][0]) if isinstance(part, PLAIN)]
        return not all(any(is_same(part, each) for each in given) for part in plain)


def _value(args: Args, kwargs: Kwargs) -> Any:
    """Return arguments as a function returns them that changes nothing."""
    return kwargs or (args[0] if len(args) == 1 else args)


def _parts(result: Any) -> Iterable[tuple[Any, Any]]:
    """Return keys and values of what a pipeline returned, if that has several parts."""
    if isinstance(result, (tuple, list)):
        return enumerate(result)
    return result.items() if isinstance(result, dict) else ()


class _Mark:
    """A transform that changes nothing, before another one.

    Args:
        twin: Has what is to be told of it.
        step: The number of the other one.
    """

    def __init__(self, twin: _Twin, step: int) -> None:
        self._twin, self._step = twin, step

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if self._twin.watch is None:
            return _value(args, kwargs)
        return _value(*self._twin.watch.reached(self._step, args, kwargs))


class _Watched:
    """In the place of a pipeline; for `isinstance` it is one."""

    def __init__(self, pipeline: Any, twin: _Twin) -> None:
        self._pipeline, self._twin = pipeline, twin
        self._marked = pipeline
        steps = _steps(pipeline)
        if steps:
            pairs = [(_Mark(twin, number), step) for number, step in enumerate(steps)]
            self._marked = _with_steps(pipeline, [each for pair in pairs for each in pair])

    @property  # type: ignore[misc]  # as mocks have it
    def __class__(self) -> Any:
        return type(self._pipeline)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        watch = self._twin.watch
        if watch is None:
            return self._pipeline(*args, **kwargs)
        args, kwargs = watch.begins(args, kwargs)
        result = self._marked(*args, **kwargs)
        watch.ends(result)
        return result

    def __getattr__(self, name: str) -> Any:
        return getattr(self._pipeline, name)

    def __getitem__(self, key: Any) -> Any:
        return self._pipeline[key]

    def __len__(self) -> int:
        return len(self._pipeline)


def _steps(pipeline: Any) -> list[Any]:
    """Return the transforms of a pipeline that does nothing but to call them; else nothing."""
    if _name(pipeline) not in _COMPOSED or any(getattr(pipeline, it, None) for it in _OTHERWISE):
        return []
    return list(_named(pipeline).get("transforms", ()))


def _with_steps(pipeline: Any, steps: list[Any]) -> Any:
    """Return a pipeline of the same kind with other transforms."""
    other = shallow_copy(pipeline)
    vars(other)["transforms"] = type(vars(pipeline)["transforms"])(steps)
    return other


def _told(pipeline: Any) -> str:
    """Return how a pipeline describes itself, the same of each copy."""
    try:
        return _ADDRESS.sub("", repr([pipeline, _steps(pipeline)]))
    except Exception:  # noqa: BLE001  # code of the user's
        return type(pipeline).__qualname__


def _pipelines(dataset: Any) -> list[tuple[Path, Any]]:
    """Return the pipelines that a dataset has, and the names of attributes that lead there."""
    found: list[tuple[Path, Any]] = []
    holders: list[tuple[Path, Any]] = [((), dataset)]
    for path, holder in holders:
        for name, value in _named(holder).items() if _is_known(holder) else ():
            if name in _HOLDERS and _is_known(value):
                holders.append(((*path, name), value))
            elif name in _PIPELINES and callable(value):
                found.append(((*path, name), value))
    return found


def _is_known(value: Any) -> bool:
    """Whether an object's code has what a pipeline returns as it is, and a copy does no harm."""
    kind = type(value)
    module = getattr(getattr(kind, "__getitem__", kind), "__module__", "")
    known = module.startswith(_MODULES) or _name(value) in _DATASETS
    return known and not hasattr(kind, "__del__")


def _name(value: Any) -> str:
    return f"{type(value).__module__}.{type(value).__qualname__}"


def _named(value: Any) -> dict[str, Any]:
    """Return the attributes of an object that can be exchanged."""
    return dict.copy(layout_of(type(value)).dict_of(value) or {})


def _at(dataset: Any, path: Path) -> Any:
    """Return the attribute to which a path leads."""
    for name in path:
        dataset = vars(dataset)[name]
    return dataset
