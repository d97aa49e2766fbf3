"""What each worker has of its own: its copy of the dataset, and of the functions that it calls.

    the user's objects --iter()--> an `Original`, which nobody uses --each worker--> its copies

So all workers have the objects as they were at ``iter()``, whatever the loop changes later; and
each copies them in its own thread, where a free-threaded build counts references to them without
atomic instructions, and where a worker that is started in mid-epoch does the same.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any, NamedTuple

from threadloader import _torch
from threadloader._fetch.dataset_copy import (
    copy_dataset,
    copy_function,
    deep_copy,
    large_data,
)
from threadloader._fetch.loaded import take_back
from threadloader._fetch.object_copy import Copied
from threadloader._fetch.own_generators import seeded, unseeded
from threadloader._fetch.process_wide import shared_by_name
from threadloader._work.first_samples import SHARED_ADVICE
from threadloader.errors import warn_user

if TYPE_CHECKING:
    from collections.abc import Callable

    from threadloader._fetch.dataset_copy import DatasetCopy
    from threadloader._fetch.fetcher import Fetches
    from threadloader._fetch.loaded import Change
    from threadloader._fetch.object_copy import SharedPart
    from threadloader._settings import Settings
    from threadloader._work.stats import Counters


class Original(NamedTuple):
    """A dataset, and the functions that go with it; those of a worker, or what it copies."""

    dataset: Any
    collate_fn: Any  # None for none, or for the user's own
    init_fn: Any
    how: DatasetCopy
    copied: Copied  # from the user's objects to these


def original_of(settings: Settings, opened: list[Change]) -> Original:
    """Return what the workers of an epoch over a map-style dataset copy.

    Args:
        settings: Of the epoch.
        opened: What samples have opened in the calling thread, for that thread alone.
    """
    how, copied = settings.dataset_copy, Copied(own_generators=settings.isolate_rng)
    dataset = copy_dataset(settings.dataset, how, copied)
    init_fn = copy_function(settings.worker_init_fn, how, copied, "worker_init_fn")
    original = Original(dataset, _collate_fn(settings, copied), init_fn, how, copied)
    take_back(opened, copied)
    names = {change.name for change in opened}
    copied.shared = [part for part in copied.shared if part[0].rpartition(".")[2] not in names]
    return original


def copies_of(original: Original) -> Original:
    """Return a worker's own copies."""
    how, own = original.how, original.copied.own_generators
    copied, again = Copied(own_generators=own), Copied(own_generators=own)
    twin = copy_dataset(original.dataset, how, copied)
    collate_fn = original.collate_fn
    if collate_fn is not None:
        collate_fn = seeded(copy_function(unseeded(collate_fn), how, copied), copied)
    init_fn = copy_function(original.init_fn, how, copied)
    again.has_generators = copied.has_generators
    for key, (users, first) in original.copied.items():
        again[key] = users, copied.get(id(first), (first, first))[1]
    return Original(twin, collate_fn, init_fn, how, again)


def users_objects(original: Original, settings: Settings) -> Copied:
    """Return the user's objects that were copied, as the keys of `Original.copied` lead to them.

    Of deep copies it is the first object alone.
    """
    if settings.dataset_copy == "auto":
        return original.copied
    own = Copied()
    if settings.dataset_copy != "shared":
        for each in (settings.dataset, settings.collate_fn):
            own[id(each)] = each, None
    return own


def exchanged(settings: Settings) -> Original:
    """Return what kept workers copy of a collate function that was exchanged since they began."""
    return Original(settings.dataset, settings.collate_fn, None, settings.dataset_copy, Copied())


def _collate_fn(settings: Settings, copied: Copied) -> Any:
    return _collate_copy(settings.collate_fn, settings.dataset_copy, copied)


def _collate_copy(collate_fn: Any, how: DatasetCopy, copied: Copied) -> Any:
    """Return a copy of a collate function; None where there is nothing to copy."""
    if collate_fn is None or collate_fn is _torch.default_collate:
        return None
    twin = seeded(copy_function(unseeded(collate_fn), how, copied), copied)
    return None if twin is collate_fn else twin


def shared_parts(original: Original, settings: Settings) -> list[SharedPart]:
    """Return what workers share, because there is no way to give each its own."""
    copied = original.copied
    return copied.shared + shared_by_name(copied, settings.dataset, settings.collate_fn)


def warn_of_shared(shared: list[SharedPart]) -> None:
    """Name the objects that workers share."""
    if shared:
        warn_user(
            f"all workers share {named(shared)}, which can't be copied: if only one thread at a "
            f"time may use it, {SHARED_ADVICE}"
        )


def named(shared: list[SharedPart]) -> str:
    """Return the paths and classes of objects, as text."""
    them = [f"{path} ({kind.__module__}.{kind.__qualname__})" for path, kind in shared]
    return " and ".join((", ".join(them[:-1]), them[-1])) if them[1:] else them[0]


def replicas_of(settings: Settings, workers: int) -> list[Original]:
    """Return each worker's replica of an iterable dataset, with the functions that go with it.

    With a transform worker 0 reads, and the others apply it.  They have the reader's replica, which
    they leave alone.  A method of the dataset that is given as ``worker_init_fn`` sets up a replica
    in each worker.

    Args:
        settings: Of the epoch.
        workers: How many there are.
    """
    how = settings.dataset_copy
    if settings.unsharded and how == "auto":
        how = "shared"  # it has one reader, and a copy of an iterator would be read again
    if settings.transform is None or workers == 1:
        return [_replica_of(settings, how) for _ in range(workers)]
    reader = _replica_of(settings, how)
    replicas = [reader]
    bound = getattr(settings.worker_init_fn, "__self__", None) is settings.dataset
    for _ in range(workers - 1):
        # A collate function of another worker has nothing to do with the replica, which the reader
        # may be changing.
        copied = Copied(own_generators=settings.isolate_rng)
        again = bound and reader.init_fn is not settings.worker_init_fn
        init_fn = _replica_of(settings, how).init_fn if again else settings.worker_init_fn
        collate_fn = _collate_fn(settings, copied)
        replicas.append(
            Original(reader.dataset, collate_fn, init_fn, settings.dataset_copy, copied)
        )
    return replicas


def _replica_of(settings: Settings, how: DatasetCopy) -> Original:
    copied = Copied(own_generators=settings.isolate_rng)
    dataset, init_fn = settings.dataset, settings.worker_init_fn
    twin, init_fn = _replicate(dataset, init_fn, how, copied)
    return Original(twin, _collate_fn(settings, copied), init_fn, settings.dataset_copy, copied)


def _replicate(dataset: Any, init_fn: Any, how: DatasetCopy, copied: Copied) -> tuple[Any, Any]:
    """Return a replica of an iterable dataset, and of its ``worker_init_fn``.

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
    with suppress(Exception):  # whatever refuses: a generator, a lock, an open file
        twin, bound = deep_copy((dataset, init_fn), copied, large_data(dataset))
        return twin, bound
    twin = copy_dataset(dataset, how, copied, deep=True)
    return twin, copy_function(init_fn, how, copied, "worker_init_fn")


class Worker:
    """The identity of a worker, and what it has of its own.

    Args:
        number: From 0.
        place: "worker 3", for notes on errors.
        counters: Its own; nobody else writes them.
        fetcher: Gives it samples of its own copy of the dataset.
        copied: From the user's objects to its copies.
        collate_fn: Its copy; None for the user's own function.
        adopt: Called before a job, in a thread that may be kept; nothing in the calling thread.

    Threads:
        all: its own thread.
    """

    __slots__ = (
        "_collate_fn",
        "_exchanged",
        "_exchanged_fn",
        "adopt",
        "copied",
        "counters",
        "fetcher",
        "number",
        "place",
    )

    def __init__(
        self,
        number: int,
        place: str,
        counters: Counters,
        fetcher: Fetches,
        copied: Copied | None = None,
        collate_fn: Any = None,
        adopt: Callable[[], None] = lambda: None,
    ) -> None:
        self.number = number
        self.place = place
        self.counters = counters
        self.fetcher = fetcher
        self.copied = copied
        self.adopt = adopt
        self._collate_fn = collate_fn
        self._exchanged: Original | None = None
        self._exchanged_fn: Any = None

    def collate_fn(self, exchanged: Original | None) -> Any:
        """Return its copy of an epoch's collate function; None for the user's own.

        Args:
            exchanged: Has the function, if it is another one than when the worker began.
        """
        if exchanged is None:
            return self._collate_fn
        if exchanged is not self._exchanged:
            copied = Copied()
            copied[id(exchanged.dataset)] = exchanged.dataset, self.fetcher.dataset
            self._exchanged_fn = _collate_copy(exchanged.collate_fn, exchanged.how, copied)
            self._exchanged = exchanged
        return self._exchanged_fn
