"""The deterministic prefix: of a pipeline of transforms, what comes before the first random one.

    read, decode | resize | crop  flip  normalise | label
                 what is kept ^   run anew each time ^ made once

A sample is made by the dataset's own code, in a shallow copy whose pipeline has marks between its
transforms.  They see after which transform the sample's random streams, and the generators of the
transforms, are no more what they were.  What the first random transform was given is kept, with
the rest of the sample, in which the pipeline's results are known by their identity.
"""

from __future__ import annotations

import pickle
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

from threadloader import _torch
from threadloader._fetch.own_generators import generators_in
from threadloader._fetch.parts import attributes, set_attribute
from threadloader._rng.isolation import redirecting
from threadloader._rng.streams import SampleStream, here
from threadloader.datasets._cached.in_memory import PLAIN, copied, is_same, mapped

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from threadloader.errors import DataError

    Refused = Callable[[], DataError]
    Path = tuple[str, ...]


DEEPEST = 4  # attributes from a dataset to its pipeline
_NAMES = ("transform", "transforms")  # of attributes that may be a single function


class Split(NamedTuple):
    """What is kept of a sample: copies, which nobody else has."""

    step: int  # the first transform that runs anew
    calls: tuple[Any, ...]  # of the pipeline: arguments and keywords for that transform
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
        paths: The names of attributes that lead to the pipeline, from the dataset.
        kinds: The classes of its transforms.

    Threads:
        all: shared.
    """

    def __init__(self, paths: list[Path], kinds: list[type]) -> None:
        self._paths, self.kinds = paths, kinds
        self._here = threading.local()  # ``twin``: of the dataset
        self.given_up = False  # only ever becomes True
        # The first transform that was seen to draw, or a later one: threads that set it at the same
        # time may set it back, and the next sample mends that.
        self._step = len(kinds)

    @staticmethod
    def of(dataset: Any) -> Prefix | None:
        """Return the one for a dataset; None if it has no pipeline."""
        found = _pipelines(dataset)
        if not found:
            return None
        first = found[0][1]
        return Prefix([path for path, each in found if each is first], _kinds(first))

    def __deepcopy__(self, _memo: dict[int, Any]) -> Prefix:
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        return Prefix, (self._paths, self.kinds)

    def has_changed(self, dataset: Any) -> bool:
        """Whether the dataset has other transforms than it had."""
        return _kinds(_at(dataset, self._paths[0])) != self.kinds

    def load(self, dataset: Any, index: int, refused: Refused) -> tuple[Any, Split | None]:
        """Return a sample of the dataset, and what to keep of it; None if that is not known yet.

        Raises:
            DataError: By ``refused``; see `watching`.
        """
        twin = self._twin_of(dataset)
        with watching(refused, twin.generators, self._step) as watch:
            if watch is None:
                return dataset[index], None
            twin.watch = watch
            try:
                sample = twin.dataset[index]
            finally:
                twin.watch = None
        self._step = min(self._step, watch.first)
        return sample, watch.split(sample, len(self.kinds))

    def finish(self, dataset: Any, split: Split) -> Any:
        """Return the whole sample: the rest of its transforms run."""
        pipeline = _at(dataset, self._paths[0])
        rest = _with_steps(pipeline, _steps(pipeline)[split.step :])
        results = [rest(*args, **kwargs) for args, kwargs in split.calls]

        def made(part: Any) -> Any:
            if type(part) is not Hole:
                return part
            return results[part.call] if part.key is None else results[part.call][part.key]

        return mapped(split.sample, made)

    def is_as_loaded(self, dataset: Any, split: Split, index: int) -> tuple[bool, Any]:
        """Return whether a whole sample is as one without a cache; and that one."""
        stream, own = here.stream, generators_in(dataset)
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
            twin = self._here.twin = _Twin(dataset, self._paths)
        return twin


class _Twin:
    """A dataset whose pipeline has marks: a shallow copy, and the user's own is left alone.

    Args:
        original: The dataset.
        paths: The names of attributes that lead to its pipeline.

    Threads:
        all: one thread.
    """

    def __init__(self, original: Any, paths: list[Path]) -> None:
        pipeline = _at(original, paths[0])
        self.generators = generators_in(pipeline)  # to look for them takes a millisecond
        self.watch: _Watch | None = None  # of the sample that is loaded
        self._originals: list[tuple[Any, dict[str, Any]]] = []  # and the attributes they had
        copies: dict[Path, Any] = {}
        for path in paths:
            for depth in range(len(path)):
                if path[:depth] not in copies:
                    holder = _at(original, path[:depth])
                    self._originals.append((holder, dict(vars(holder))))
                    copies[path[:depth]] = _shallow(holder)
                    if depth:
                        vars(copies[path[: depth - 1]])[path[depth - 1]] = copies[path[:depth]]
            vars(copies[path[:-1]])[path[-1]] = _marked(pipeline, self)
        self.dataset = copies[()]

    def is_of(self, dataset: Any) -> bool:
        """Whether it is a copy of a dataset as that is now."""
        return dataset is self._originals[0][0] and all(
            len(before) == len(vars(holder))
            and all(vars(holder).get(name, self) is value for name, value in before.items())
            for holder, before in self._originals
        )


@contextmanager
def watching(refused: Refused, own: Sequence[Any] = (), step: int = -1) -> Iterator[_Watch | None]:
    """Watch what the sample draws that the calling thread loads; None outside of a loader.

    Args:
        refused: Makes the error of a sample that draws random numbers, but in a pipeline whose
            results it has as they are.
        own: The generators of the pipeline's transforms.
        step: The transform whose arguments are kept.

    Raises:
        DataError: By ``refused``.
    """
    stream = here.stream
    if stream is None:  # draws are nobody's business there
        yield None
        return
    watch = _Watch(stream, refused, own, step)
    here.stream = watch
    try:
        # The calling thread of a loader may draw from torch's default generator.
        with redirecting():
            yield watch
    finally:
        here.stream = stream
    watch.check()


class _Watch:
    """What a sample does while it is loaded; as a stream, it draws from the sample's.

    For the arguments see `watching`.

    Threads:
        all: one thread.
    """

    def __init__(self, stream: Any, refused: Refused, own: Sequence[Any], step: int) -> None:
        self._stream, self._refused, self._own, self._step = stream, refused, own, step
        self._at: int | None = None  # the transform that runs; None outside of the pipeline
        self._states = b""
        self._outside = False  # whether anything was drawn there
        self._calls: list[Any] = []
        self._results: list[Any] = []
        self.first = 1 << 30  # the first transform that drew

    def __getattr__(self, name: str) -> Any:
        self._drew()
        return getattr(self._stream, name)

    def _drew(self) -> None:
        if self._at is None:
            self._outside = True
            self.check()
        else:
            self.first = min(self.first, self._at)

    def check(self) -> None:
        """Raise an error if the sample drew elsewhere, and went on after the error."""
        if self._outside:
            raise self._refused()

    def settle(self) -> None:
        """See whether the transform that ran has drawn from a generator of its own."""
        states = pickle.dumps([each.state() for each in self._own])
        if self._at is not None and states != self._states:
            self._drew()
        self._states = states

    def reached(self, step: int, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Note that a transform is about to run."""
        self.settle()
        self._at = step
        if step == self._step <= self.first:
            self._calls.append(copied((args, kwargs)))

    def left(self, result: Any) -> None:
        """Note what the pipeline returned."""
        self.settle()
        self._at = None
        self._results.append(result)

    def split(self, sample: Any, steps: int) -> Split | None:
        """Return what to keep of the sample; None if that is not known yet.

        Args:
            sample: The sample.
            steps: How many transforms there are.

        Raises:
            DataError: See `watching`.
        """
        if self.first >= steps:
            return Split(steps, (), copied(sample))
        sample, holes = self._with_holes(sample)
        calls = set(range(len(self._results)))
        if not holes or {hole.call for hole in holes} != calls:
            raise self._refused()
        if len(self._calls) != len(calls):
            return None
        if any(map(self._changes_plain, calls - {hole.call for hole in holes if hole.key is None})):
            raise self._refused()
        return Split(self._step, tuple(self._calls), sample)

    def _with_holes(self, sample: Any) -> tuple[Any, list[Hole]]:
        """Return a copy of the sample with holes for what the pipeline made, and these."""
        known, holes = {}, []
        for call, result in enumerate(self._results):
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
        plain = [part for _, part in _parts(self._results[call]) if isinstance(part, PLAIN)]
        return not all(any(is_same(part, each) for each in given) for part in plain)


def _parts(result: Any) -> Iterable[tuple[Any, Any]]:
    """Return keys and values of what a pipeline returned, if that has several parts."""
    if isinstance(result, tuple):
        return enumerate(result)
    return result.items() if isinstance(result, dict) else ()


class _Mark:
    """A transform that changes nothing, before or after another one.

    Args:
        twin: Has what is to be told of it.
        step: The number of the next transform; None after the last.
    """

    def __init__(self, twin: _Twin, step: int | None) -> None:
        self._twin, self._step = twin, step

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        result = kwargs or (args[0] if len(args) == 1 else args)
        watch = self._twin.watch
        if watch is not None and self._step is None:
            watch.left(result)
        elif watch is not None and self._step is not None:
            watch.reached(self._step, args, kwargs)
        return result


class _Chain:
    """Transforms one after the other, for as many arguments as the first one gets."""

    def __init__(self, steps: list[Any]) -> None:
        self._steps = steps

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        several = len(args) > 1
        result: Any = kwargs or (args if several else args[0])
        for step in self._steps:
            result = step(*args, **kwargs)
            args, kwargs = ((), result) if kwargs else (result if several else (result,), {})
        return result


class _MarkedPipeline:
    """In the place of a pipeline that is called, whose results are those of its own code."""

    def __init__(self, pipeline: Any, marked: Any, twin: _Twin) -> None:
        self._pipeline, self._marked, self._twin = pipeline, marked, twin

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        result = self._marked(*args, **kwargs)
        if self._twin.watch is not None:
            self._twin.watch.left(result)
        return result

    def __getattr__(self, name: str) -> Any:
        return getattr(self._pipeline, name)


def _marked(pipeline: Any, twin: _Twin) -> Any:
    """Return a pipeline that does the same, and tells the twin's watch of it."""
    pairs = [(_Mark(twin, step), each) for step, each in enumerate(_steps(pipeline))]
    steps: list[Any] = [each for pair in pairs for each in pair]
    if not callable(pipeline):  # the dataset's code loops over it
        return [*steps, _Mark(twin, None)]
    return _MarkedPipeline(pipeline, _with_steps(pipeline, steps), twin)


def _steps(pipeline: Any) -> list[Any]:
    """Return the transforms of a pipeline; of another function itself; of another value nothing."""
    steps = _named(pipeline).get("transforms", pipeline)
    is_module = _torch.is_module(steps) and hasattr(type(steps), "__iter__")
    if is_module or isinstance(steps, (list, tuple)):
        return list(steps) if all(map(callable, steps)) else []
    return [pipeline] if callable(pipeline) else []


def _kinds(pipeline: Any) -> list[type]:
    return list(map(type, _steps(pipeline)))


def _with_steps(pipeline: Any, steps: list[Any]) -> Any:
    """Return a pipeline of the same kind with other transforms."""
    own = _named(pipeline).get("transforms")
    if not isinstance(own, (list, tuple)):
        return _Chain(steps)
    other = _shallow(pipeline)
    vars(other)["transforms"] = type(own)(steps)
    return other


def _pipelines(dataset: Any) -> list[tuple[Path, Any]]:
    """Return the pipelines that a dataset has, and the names of attributes that lead there."""
    found: list[tuple[Path, Any]] = []
    holders: list[tuple[Path, Any]] = [((), dataset)]
    for path, holder in holders:
        for name, value in _named(holder).items() if _can_be_copied(holder) else ():
            inner = _named(value)
            steps = [] if name == "target_transform" or isinstance(value, type) else _steps(value)
            several = bool(steps) and steps != [value]
            if several or (steps and name in _NAMES and "transform" not in inner):
                found.append(((*path, name), value))
            elif (
                inner
                and len(path) < DEEPEST
                and (name in _NAMES or hasattr(type(value), "__getitem__"))
            ):
                holders.append(((*path, name), value))
    return sorted(found, key=lambda each: each[0][-1] not in _NAMES)


def _named(value: Any) -> dict[str, Any]:
    """Return the attributes of an object that can be exchanged."""
    return {name: part for name, part, is_slot in attributes(value) if not is_slot}


def _at(dataset: Any, path: Path) -> Any:
    """Return the attribute to which a path leads."""
    for name in path:
        dataset = vars(dataset)[name]
    return dataset


def _can_be_copied(value: Any) -> bool:
    """Whether it is no list or the like, whose entries are not in attributes."""
    try:
        object.__new__(type(value))
    except TypeError:
        return False
    return True


def _shallow(value: Any) -> Any:
    """Return a copy with the same attributes.  Not by `copy.copy`: a class may drop some there."""
    twin = object.__new__(type(value))
    for name, part, is_slot in attributes(value):
        set_attribute(twin, name, part, is_slot=is_slot)
    return twin
