"""What each worker has of its own: its copy of the dataset, and of the functions it calls.

They are made where the epoch begins, before the consumer's thread goes on to change anything.
"""

from __future__ import annotations

import copy
from contextlib import suppress
from typing import TYPE_CHECKING, Any, NamedTuple

from threadloader import _torch
from threadloader._fetch.dataset_copy import copy_dataset, deep_copy
from threadloader._fetch.fetcher import Fetcher
from threadloader._fetch.function_copy import copy_function

if TYPE_CHECKING:
    from threadloader._fetch.dataset_copy import Copied, DatasetCopy
    from threadloader._fetch.fetcher import Fetches
    from threadloader._settings import Settings

__all__ = [
    "CollateFns",
    "Original",
    "collate_fns_of",
    "copied_again",
    "fetchers_of",
    "has_one_reader",
    "original_of",
    "rebound",
    "replicas_of",
]


class Original(NamedTuple):
    """A dataset and a collate function of which copies are made later.

    It is a copy itself, which nobody uses: the user may change the dataset meanwhile.
    """

    dataset: Any
    collate_fn: Any  # None for none, or for the user's own
    how: DatasetCopy


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
        copied: list[Copied] = [
            {} if each is first else {id(users): (users, each)} for each in datasets
        ]
        copied[0][id(users)] = users, first
        self._copies = collate_fns_of(settings, copied)
        if original is not None:
            (collate_fn,) = collate_fns_of(settings, [{id(users): (users, original.dataset)}])
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
            copied: Copied = {id(dataset): (dataset, self._fetchers[number].dataset)}
            self._later[number] = copy_function(original.collate_fn, original.how, copied)
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
        copies = [copy_dataset(dataset, how, known) for known in copied]
        return [(twin, rebound(init_fn, dataset, twin)) for twin in copies]
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
    twins = [copy_function(collate_fn, how, known) for known in copied]
    return [None if twin is collate_fn else twin for twin in twins]


def original_of(settings: Settings) -> Original:
    """Return what the workers that are started later have copies of."""
    copied: Copied = {}
    dataset = copy_dataset(_torch.unwrapped(settings.dataset), settings.dataset_copy, copied)
    (collate_fn,) = collate_fns_of(settings, [copied])
    return Original(dataset, collate_fn, settings.dataset_copy)


def copied_again(original: Original) -> tuple[Any, Any]:
    """Return copies of a dataset and its collate function.

    Raises:
        Exception: What the copying of one raises, of a class that can be copied once only say.
    """
    copied: Copied = {}
    twin = copy_dataset(original.dataset, original.how, copied)
    collate_fn = original.collate_fn
    if collate_fn is not None:
        collate_fn = copy_function(collate_fn, original.how, copied)
    return twin, collate_fn


def fetchers_of(
    settings: Settings, replicas: list[tuple[Any, Any]], copied: list[Copied]
) -> list[Fetches]:
    """Return what gives each worker its samples."""
    if not settings.iterable:
        return [Fetcher(twin, whole_batches=settings.whole_batches) for twin, _ in replicas]
    from threadloader._fetch.read_samples import ReadSamples  # noqa: PLC0415  # for iterables only

    transform, how = settings.transform, settings.dataset_copy
    return [
        ReadSamples(replica, copy_function(transform, how, known))
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
        how: ``"auto"`` is a deep copy, or a shallow one where that fails, or the object itself
            where that fails too; else as `copy_dataset` has it.
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
        return twin, rebound(init_fn, dataset, twin)
    # What worker processes would share stays one, an epoch number in shared memory say.
    parts = getattr(dataset, "__dict__", {}).values()
    with suppress(Exception):  # whatever refuses: a generator, a lock, an open file
        twin, bound = deep_copy((dataset, init_fn), copied, filter(_torch.is_shared, parts))
        return twin, bound
    try:
        twin = copy.copy(dataset)
    except Exception:  # noqa: BLE001  # the same
        twin = dataset
    copied[id(dataset)] = dataset, twin
    return twin, rebound(init_fn, dataset, twin)


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
        others = [_replicate(dataset, init_fn, how, {})[1] for _ in others]
    return [(replica, each) for each in (bound, *others)]


def rebound(init_fn: Any, dataset: Any, twin: Any) -> Any:
    """Return ``init_fn``, or, if it is a method of the dataset, the copy's."""
    if getattr(init_fn, "__self__", None) is dataset and twin is not dataset:
        return init_fn.__func__.__get__(twin)
    return init_fn
