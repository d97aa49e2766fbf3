"""The `ThreadLoader` that loads for one of torch's loaders, and its measured iterator.

It promises by itself to give what torch gives.  So torch keeps no more than the loaders that ask
for processes, or for the program's own thread.
"""

from __future__ import annotations

from operator import is_
from time import perf_counter
from typing import TYPE_CHECKING, Any

from threadloader import _torch
from threadloader._fetch.dataset_copy import copy_dataset
from threadloader._fetch.object_copy import Copied
from threadloader._fetch.process_wide import process_wide_in
from threadloader._lifetime.dropping import DROPPED
from threadloader._order.known_samplers import is_users
from threadloader.loader import ThreadLoader

if TYPE_CHECKING:
    from collections.abc import Iterator

    from threadloader._replacement.report import LoaderRates, Made

__all__ = ["by_threads"]

# Attributes of both loaders; the latter only of those with workers.
_SAME = ("dataset", "collate_fn", "pin_memory", "generator", "in_order", "pin_memory_device")
_OF_WORKERS = ("timeout", "worker_init_fn", "persistent_workers")


def by_threads(loader: Any, made: Made, row: LoaderRates, *, threads: int | None) -> Any:
    """Return an iterator that loads by threads; None, and note the reason, if torch must load.

    Args:
        loader: One of torch's.
        made: What is kept on it.
        row: Gets what is measured.
        threads: Of each loader of a map-style dataset; None for as many as it has workers, or the
            default if it has none.
    """
    arguments = _arguments_of(loader, threads)
    starts = not loader.persistent_workers
    # The loader of the pass before knows what samples do.  Kept workers go on as they are.
    same = made.twin and (not starts or all(map(is_, made.twin[0].values(), arguments.values())))
    if not same:
        twin, starts = _new(loader, made, arguments), True
        if twin is None:
            return None
        made.twin = arguments, twin
    row.begins(None, _in_words(arguments["num_workers"]))
    began = perf_counter()
    if loader.num_workers and starts:
        # torch begins two passes where it starts processes, and uses the second.
        iter(_index_sampler(loader))
    epoch = iter(made.twin[1])
    row.waited(perf_counter() - began)
    return Threaded(epoch, row)


def _arguments_of(loader: Any, threads: int | None) -> dict[str, Any]:
    """Return the arguments of a `ThreadLoader` with the batches of one of torch's loaders."""
    names = _SAME + _OF_WORKERS if loader.num_workers else _SAME
    arguments = {name: getattr(loader, name) for name in names}
    if isinstance(loader.dataset, _torch.IterableDataset):
        # Its workers share it out: their number decides about batches.
        same = ("num_workers", "batch_size", "drop_last")
        return arguments | {name: getattr(loader, name) for name in same}
    arguments["num_workers"] = threads or loader.num_workers or None
    if is_users(_index_sampler(loader)):  # it may follow the program: drawn as far ahead as torch
        arguments["prefetch_factor"] = loader.prefetch_factor
    if loader.batch_sampler is not None:
        return arguments | {"batch_sampler": loader.batch_sampler}
    return arguments | {"batch_size": None, "sampler": loader.sampler}


def _index_sampler(loader: Any) -> Any:
    return loader.sampler if loader.batch_sampler is None else loader.batch_sampler


def _new(loader: Any, made: Made, arguments: dict[str, Any]) -> ThreadLoader[Any] | None:
    """Return a loader; None, and note the reason, if torch must load."""
    if loader.num_workers:
        arguments = arguments | {
            name: Begun(arguments[name])
            for name in ("sampler", "batch_sampler")
            if name in arguments and is_users(arguments[name])
        }
    try:
        made.reason = _why_torch(loader)
        return None if made.reason else ThreadLoader(**arguments)
    except (TypeError, ValueError, RuntimeError, AssertionError) as error:
        made.reason = f"ThreadLoader refuses its arguments: {error}"
        return None


def _why_torch(loader: Any) -> str | None:
    """Return why torch must load, as far as that shows beforehand; None if threads may."""
    context, dataset = loader.multiprocessing_context, _torch.unwrapped(loader.dataset)
    if context is not None:
        return f"multiprocessing_context={context.get_start_method()!r} asks for processes"
    iterable = isinstance(dataset, _torch.IterableDataset)
    if not loader.num_workers:
        own = "an iterable dataset without workers is read by the program's own thread"
        return own if iterable else None
    methods = ("__iter__",) if iterable else ("__getitem__", "__getitems__")
    functions = [(type(dataset).__name__, getattr(dataset, name, None)) for name in methods]
    for name, function in (("worker_init_fn", loader.worker_init_fn), *functions):
        found = process_wide_in(function)
        if found is not None:
            return f"{name} uses {found}, which concerns the whole process"
    copy_dataset(dataset, "auto", copied := Copied())
    for path, kind in copied.shared:
        return f"threads would share {path} ({kind.__qualname__}), which can't be copied"
    return None


def _in_words(threads: int | None) -> str:
    if threads is None:
        return "threads (default)"  # as many as are faster, or none
    return f"{threads} thread{'s' if threads > 1 else ''}"


class Threaded:
    """A pass of threads, measured.

    Threads:
        all: consumer.
    """

    def __init__(self, epoch: Any, row: LoaderRates) -> None:
        self._epoch = epoch
        self._row = row

    def __iter__(self) -> Threaded:
        return self

    def __len__(self) -> int:
        return len(self._epoch)

    def __getattr__(self, name: str) -> Any:  # those of torch's iterator that programs look at
        return getattr(vars(self).get("_epoch"), name)

    def __next__(self) -> Any:
        try:
            return self._row.next_of(self._epoch.__next__)
        finally:
            self = DROPPED  # an error keeps this frame


class Begun:
    """A sampler whose code at the beginning of a pass runs when the first index is drawn.

    torch draws the seed of its workers before that code runs, and a `ThreadLoader` after
    ``iter(sampler)``.

    Args:
        sampler: The user's.
    """

    def __init__(self, sampler: Any) -> None:
        self._sampler = sampler
        self.batch_size = getattr(sampler, "batch_size", None)

    def __iter__(self) -> Iterator[Any]:
        yield from self._sampler

    def __len__(self) -> int:
        return len(self._sampler)
