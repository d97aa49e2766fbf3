"""One of torch's loaders, for which a `ThreadLoader` loads, and its measured iterator.

A `ThreadLoader` promises by itself to give what torch gives.  So torch keeps no more than the
loaders that ask for processes, or for the program's own thread.
"""

from __future__ import annotations

from functools import partial
from operator import is_
from typing import TYPE_CHECKING, Any

from threadloader import _torch
from threadloader._lifetime import DROPPED
from threadloader._loader.loader import ThreadLoader
from threadloader._order.samplers import is_users
from threadloader._worker.copy_rules import copy_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from threadloader.cli.run_report import LoaderRates


# Attributes of both loaders; the latter only of those with workers.  The same prefetch_factor draws
# as far ahead as torch from a sampler, which may follow the program.
_SAME = ("dataset", "collate_fn", "pin_memory", "generator", "in_order", "pin_memory_device")
_BY = {None: "threads (default)", 0: "the program's own thread"}
_OF_WORKERS = ("timeout", "worker_init_fn", "persistent_workers", "prefetch_factor")


class Replaced:
    """What loads for one of torch's loaders.  It has no reference to that.

    Args:
        begin: Returns torch's own iterator of a loader.
        threads: Of a map-style dataset; None for as many as it has workers, or the default.
        replace: Whether threads load.
    """

    def __init__(self, begin: Callable[[Any], Any], threads: int | None, *, replace: bool) -> None:
        self._begin, self._threads, self._replace = begin, threads, replace
        self._arguments: dict[str, Any] = {}
        self._twin: ThreadLoader[Any] | None = None  # with these arguments

    def measured(self, loader: Any, row: Callable[[str, str | None], LoaderRates]) -> Measured:
        """Return an iterator that loads by threads, or by torch if it must.

        Args:
            loader: Of torch's.
            row: Returns what counts, of who loads, and of why torch does so.
        """
        reason = _why_torch(loader) if self._replace else None
        if self._replace and reason is None:
            arguments = _arguments_of(loader, self._threads)
            # The loader of the pass before knows what samples do.
            if self._twin is None or not all(
                map(is_, self._arguments.values(), arguments.values())
            ):
                try:
                    self._arguments, self._twin = arguments, ThreadLoader(**arguments)
                except (TypeError, ValueError, RuntimeError, AssertionError) as error:
                    reason = f"ThreadLoader refuses its arguments: {error}"
            if reason is None:
                number = arguments["num_workers"]
                by = f"{number} thread{'s' * (number > 1)}" if number else _BY[number]
                return Measured(row(by, None), partial(iter, self._twin))
        processes = f"{loader.num_workers} process{'es' * (loader.num_workers > 1)}"
        by = f"torch, {processes if loader.num_workers else 'in-process'}"
        return Measured(row(by, reason), partial(self._begin, loader))


class Measured:
    """An iterator of one of torch's loaders, measured.

    Args:
        row: Gets what is measured.
        begin: Returns the iterator that loads.

    Threads:
        all: consumer.
    """

    def __init__(self, row: LoaderRates, begin: Callable[[], Any]) -> None:
        self._row, self._begin = row, begin
        self._inner: Any = row.begun(begin)

    def _reset(self, loader: Any, first_iter: bool = False) -> None:
        """Begin the next pass of workers that are kept; as torch's iterator, which calls it."""
        if hasattr(self._inner, "_reset"):  # torch's own
            self._row.begun(partial(self._inner._reset, loader, first_iter))  # noqa: SLF001
        else:
            self._inner = self._row.begun(self._begin)

    def __iter__(self) -> Measured:
        return self

    def __len__(self) -> int:
        return len(self._inner)

    def __getattr__(self, name: str) -> Any:  # those of torch's iterator that programs look at
        return getattr(vars(self).get("_inner"), name)

    def __next__(self) -> Any:
        try:
            return self._row.next_of(self._inner.__next__)
        finally:
            self = DROPPED  # an error keeps this frame


def _arguments_of(loader: Any, threads: int | None) -> dict[str, Any]:
    """Return the arguments of a `ThreadLoader` with the batches of one of torch's loaders."""
    names = _SAME + _OF_WORKERS if loader.num_workers else _SAME
    arguments = {name: getattr(loader, name) for name in names}
    if isinstance(loader.dataset, _torch.IterableDataset):
        # Its workers share it out: their number decides about batches.
        same = ("num_workers", "batch_size", "drop_last")
        return arguments | {name: getattr(loader, name) for name in same}
    arguments["num_workers"] = threads or loader.num_workers or None
    if arguments["num_workers"] is None and is_users(loader.batch_sampler or loader.sampler):
        # It may follow the program, and is drawn when its batch is asked for.
        arguments["num_workers"] = 0
    if loader.batch_sampler is not None:
        return arguments | {"batch_sampler": loader.batch_sampler}
    return arguments | {"batch_size": None, "sampler": loader.sampler}


def _why_torch(loader: Any) -> str | None:
    """Return why torch must load; None if threads may."""
    context, dataset = loader.multiprocessing_context, loader.dataset
    if context is not None:
        return f"multiprocessing_context={context.get_start_method()!r} asks for processes"
    if not loader.num_workers:
        iterable = isinstance(dataset, _torch.IterableDataset)
        own = "an iterable dataset without workers is read by the program's own thread"
        return own if iterable else None
    _, copied = copy_of(dataset, "auto")
    for path, kind in copied.shared:
        return f"threads would share {path} ({kind.__qualname__}), which can't be copied"
    return None
