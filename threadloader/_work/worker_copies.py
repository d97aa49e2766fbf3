"""What each worker has of its own: its copy of the dataset, and of the functions it calls.

They are made where the epoch begins, before the consumer's thread goes on to change anything.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any, NamedTuple

from threadloader import _torch
from threadloader._fetch.dataset_copy import (
    Copied,
    copy_dataset,
    copy_function,
    deep_copy,
    large_data,
)
from threadloader._fetch.fetcher import Fetcher
from threadloader._fetch.loaded import take_back
from threadloader._fetch.named_objects import shared_by_name
from threadloader._fetch.own_generators import seeded, unseeded
from threadloader._warnings import warn_user
from threadloader._work.first_samples import SHARED_ADVICE

if TYPE_CHECKING:
    from threadloader._fetch.dataset_copy import DatasetCopy
    from threadloader._fetch.fetcher import Fetches
    from threadloader._fetch.loaded import Change
    from threadloader._fetch.object_copy import SharedPart
    from threadloader._settings import Settings
    from threadloader._work.first_samples import FirstSamples

__all__ = [
    "CollateFns",
    "Original",
    "Originals",
    "collate_fns_of",
    "copied_again",
    "fetchers_of",
    "has_one_reader",
    "leave_unopened",
    "named",
    "replicas_of",
    "warn_of_shared",
]


class Original(NamedTuple):
    """A dataset and a collate function of which copies are made later.

    It is a copy itself, which nobody uses: the user may change the dataset meanwhile.
    """

    dataset: Any
    collate_fn: Any  # None for none, or for the user's own
    how: DatasetCopy
    copied: Copied  # from the user's objects to these
    init_fn: Any = None


class CollateFns:
    """Each worker's copy of a collate function that was exchanged; later workers make theirs.

    Args:
        settings: Of the epoch; with the function.
        fetchers: Each worker's dataset, those of the workers that are started later, too.
        original: What workers that are started later copy; None if none may be.

    Threads:
        getitem: worker, with its own number.
    """

    __slots__ = ("_copies", "_fetchers", "_later", "_original")

    def __init__(
        self, settings: Settings, fetchers: list[Fetches], original: Original | None
    ) -> None:
        users = _torch.unwrapped(settings.dataset)
        datasets = [each.dataset for each in fetchers.copy()]  # a thread may add one
        first = datasets[0]
        copied = [Copied() for _ in datasets]
        for known, each in zip(copied, datasets, strict=True):
            if each is not first or known is copied[0]:
                known[id(users)] = users, each
        self._copies = collate_fns_of(settings, copied)
        if original is not None:
            known = Copied()
            known[id(users)] = users, original.dataset
            (collate_fn,) = collate_fns_of(settings, [known])
            original = original._replace(collate_fn=collate_fn)
        self._original = original
        self._fetchers = fetchers
        self._later: dict[int, Any] = {}  # each entry is its worker's

    def __getitem__(self, number: int) -> Any:
        """Return a worker's copy; None for the user's own."""
        if number < len(self._copies):
            return self._copies[number]
        original = self._original
        if original is None or original.collate_fn is None:
            return None
        if number not in self._later:
            dataset = original.dataset
            copied = Copied()
            copied[id(dataset)] = dataset, self._fetchers[number].dataset
            self._later[number] = _collate_copy(original.collate_fn, original.how, copied)
        return self._later[number]


def replicas_of(settings: Settings, copied: list[Copied]) -> list[tuple[Any, Any]]:
    """Return each worker's copy of the dataset, and of ``worker_init_fn``.

    Args:
        settings: Of the loader.
        copied: For each worker, is told what was copied.
    """
    dataset, init_fn = _torch.unwrapped(settings.dataset), settings.worker_init_fn
    how = settings.dataset_copy
    if not settings.iterable:
        return [
            (
                copy_dataset(dataset, how, known),
                copy_function(init_fn, how, known, "worker_init_fn"),
            )
            for known in copied
        ]
    if settings.unsharded and how == "auto":
        how = "shared"  # it has one reader, and a copy of an iterator would be read again
    if has_one_reader(settings, len(copied)):
        return _replicate_once(dataset, init_fn, how, copied)
    return [_replicate(dataset, init_fn, how, known) for known in copied]


def collate_fns_of(settings: Settings, copied: list[Copied]) -> list[Any]:
    """Return each worker's copy of the collate function; None where there is nothing to copy."""
    collate_fn, how = settings.collate_fn, settings.dataset_copy
    if collate_fn is None or collate_fn is _torch.default_collate:
        return [None] * len(copied)
    twins = [_collate_copy(collate_fn, how, known) for known in copied]
    return [None if twin is collate_fn else twin for twin in twins]


def _collate_copy(collate_fn: Any, how: DatasetCopy, copied: Copied) -> Any:
    return seeded(copy_function(unseeded(collate_fn), how, copied), copied)


class Originals:
    """Makes the `Original` of an epoch, of what the user's objects are at the first call.

    Args:
        settings: Of the epoch.
        first_samples: Knows what samples have opened in the calling thread.

    Threads:
        get: consumer, or planner; a worker once it was called.
    """

    __slots__ = ("_first_samples", "_settings", "made", "opened", "taken")

    def __init__(self, settings: Settings, first_samples: FirstSamples) -> None:
        self._settings = settings._replace(sampler=None, batch_sampler=None)
        self._first_samples = first_samples
        self.made: Original | None = None
        self.taken = False  # whether the threads of an epoch that began without have copies
        self.opened: list[Change] = []  # what samples had, in the calling thread, by then

    def get(self) -> Original:
        """Return what the workers that are started later have copies of."""
        if self.made is None:
            settings, copied = self._settings, Copied(own_generators=self._settings.isolate_rng)
            how = settings.dataset_copy
            dataset = copy_dataset(_torch.unwrapped(settings.dataset), how, copied)
            (collate_fn,) = collate_fns_of(settings, [copied])
            self.opened = self._first_samples.opened
            leave_unopened(self.opened, copied)
            self.made = Original(dataset, collate_fn, how, copied)
        return self.made

    def shared(self) -> list[SharedPart]:
        """Return what the threads would share that take over from the calling one."""
        copied, settings = self.get().copied, self._settings
        return copied.shared + shared_by_name(copied, settings.dataset, settings.collate_fn)


def copied_again(original: Original, init_fn: Any = None) -> Original:
    """Return copies of a dataset, its collate function, and a worker's ``worker_init_fn``.

    Raises:
        Exception: What the copying of one raises, of a class that can be copied once only say.
    """
    own = original.copied.own_generators
    copied, again = Copied(own_generators=own), Copied(own_generators=own)
    twin = copy_dataset(original.dataset, original.how, copied)
    collate_fn = original.collate_fn
    if collate_fn is not None:
        collate_fn = _collate_copy(collate_fn, original.how, copied)
    init_fn = copy_function(init_fn, original.how, copied)
    again.has_generators = copied.has_generators
    for key, (users, first) in original.copied.items():
        again[key] = users, copied.get(id(first), (first, first))[1]
    return Original(twin, collate_fn, original.how, again, init_fn)


def leave_unopened(opened: list[Change], copied: Copied) -> None:
    """Unset in a worker's copies what samples have opened for the calling thread alone."""
    take_back(opened, copied)
    names = {change.name for change in opened}
    copied.shared = [part for part in copied.shared if part[0].rpartition(".")[2] not in names]


def warn_of_shared(copied: Copied) -> None:
    """Name the objects that workers share, because there was no way to give each its own."""
    if copied.shared:
        warn_user(
            f"all workers share {named(copied.shared)}, which can't be copied: if only one thread "
            f"at a time may use it, {SHARED_ADVICE}"
        )


def named(shared: list[SharedPart]) -> str:
    """Return the paths and classes of objects, as text."""
    them = [f"{path} ({kind.__module__}.{kind.__qualname__})" for path, kind in shared]
    return " and ".join((", ".join(them[:-1]), them[-1])) if them[1:] else them[0]


def fetchers_of(
    settings: Settings, replicas: list[tuple[Any, Any]], copied: list[Copied]
) -> list[Fetches]:
    """Return what gives each worker its samples."""
    if not settings.iterable:
        whole = settings.whole_batches
        pairs = zip(replicas, copied, strict=True)
        return [Fetcher(twin, whole_batches=whole, copied=known) for (twin, _), known in pairs]
    from threadloader._fetch.read_samples import ReadSamples  # noqa: PLC0415  # for iterables only

    transform, how = settings.transform, settings.dataset_copy
    return [
        ReadSamples(replica, copy_function(transform, how, known, "transform"), known)
        for (replica, _), known in zip(replicas, copied, strict=True)
    ]


def has_one_reader(settings: Settings, num_workers: int) -> bool:
    """Whether one worker reads an iterable, and the others apply the transform."""
    return settings.transform is not None and num_workers > 1


def _replicate(dataset: Any, init_fn: Any, how: DatasetCopy, copied: Copied) -> tuple[Any, Any]:
    """Return a worker's replica of an iterable dataset, and of its ``worker_init_fn``.

    Both are copied together, so that a method of the dataset given as ``worker_init_fn`` sets up
    the replica.

    Args:
        dataset: The user's dataset.
        init_fn: The user's function, or None.
        how: ``"auto"`` is a deep copy that shares large arrays, or, where that fails, a copy of
            what can be copied; else as `copy_dataset` has it.
        copied: Is told what was copied, for a collate function that refers to it.
    """
    if how == "shared":
        copied[id(dataset)] = dataset, dataset
        return dataset, init_fn
    if how == "deep":
        twin, bound = deep_copy((dataset, init_fn), copied)
        return twin, bound
    if callable(how):
        twin = copy_dataset(dataset, how, copied)
        return twin, _rebound(init_fn, dataset, twin)
    with suppress(Exception):  # whatever refuses: a generator, a lock, an open file
        twin, bound = deep_copy((dataset, init_fn), copied, large_data(dataset))
        return twin, bound
    twin = copy_dataset(dataset, how, copied, deep=True)
    return twin, copy_function(init_fn, how, copied, "worker_init_fn")


def _replicate_once(
    dataset: Any, init_fn: Any, how: DatasetCopy, copied: list[Copied]
) -> list[tuple[Any, Any]]:
    """Return the one replica that is read, with a ``worker_init_fn`` for each worker.

    A method of the dataset given as ``worker_init_fn`` sets up the replica in the worker that
    reads it, and a replica that nobody reads in each other one.
    """
    # A collate function of another worker has nothing to do with the replica, which the reader may
    # be changing.
    replica, bound = _replicate(dataset, init_fn, how, copied[0])
    others = [init_fn] * (len(copied) - 1)
    if bound is not init_fn and getattr(init_fn, "__self__", None) is dataset:
        others = [_replicate(dataset, init_fn, how, Copied())[1] for _ in others]
    return [(replica, each) for each in (bound, *others)]


def _rebound(init_fn: Any, dataset: Any, twin: Any) -> Any:
    """Return ``init_fn``, or, if it is a method of the dataset, the copy's."""
    if getattr(init_fn, "__self__", None) is dataset and twin is not dataset:
        return init_fn.__func__.__get__(twin)
    return init_fn
