"""The `ThreadLoader` that loads for one of torch's loaders, and its measured iterators."""

from __future__ import annotations

from operator import is_
from time import perf_counter
from typing import TYPE_CHECKING, Any

from threadloader import _torch
from threadloader._lifetime.dropping import DROPPED
from threadloader._replacement.first_batch import FirstBatch
from threadloader._replacement.reasons import is_drawn_meanwhile, starts_at_iter, why_torch
from threadloader.loader import ThreadLoader

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from threadloader._replacement.report import Made, Report, Row

__all__ = ["by_threads"]

_SAME = (  # attributes of both loaders
    *("collate_fn", "pin_memory", "timeout", "worker_init_fn", "generator", "persistent_workers"),
    *("in_order", "pin_memory_device"),
)

# Attributes that decide about a reason.
_CHECKED = (
    *("dataset", "sampler", "batch_sampler", "num_workers", "worker_init_fn", "collate_fn"),
    "multiprocessing_context",
)


def by_threads(
    loader: Any,
    made: Made,
    report: Report,
    make_iterator: Callable[[], Any],
    *,
    threads: int | None,
    overridden: bool,
) -> Any:
    """Return an iterator that loads by threads; None, and note the reason, if torch must load.

    Args:
        loader: One of torch's.
        made: What is kept on it.
        report: Gets what is measured.
        make_iterator: Makes torch's iterator of this loader.
        threads: Of each loader of a map-style dataset; None for as many as it has workers, or the
            default if it has none.
        overridden: Whether its class makes iterators of its own.
    """
    checked = tuple(getattr(loader, name) for name in _CHECKED)
    if not (made.checked and all(map(is_, checked, made.checked))):  # it reads bytecode
        made.reason = why_torch(loader, overridden=overridden)
        if made.reason is not None:
            return None
        made.checked = checked
    arguments = _arguments_of(loader, threads)
    row = report.row(made.place, loader)
    if not (loader.num_workers or made.watched):
        row.begins(None)
        return FirstInProcess(arguments, made, row, make_iterator())
    twin, fresh = _twin(made, arguments)
    if twin is None:
        return None
    row.begins(None, _in_words(arguments))
    began = perf_counter()
    if loader.num_workers and fresh and starts_at_iter(sampler := _index_sampler(loader)):
        # torch begins two passes where it starts processes, and uses the second.
        iter(sampler)
    epoch = iter(twin)
    row.waited(perf_counter() - began)
    return Threaded(epoch, row)


def _arguments_of(loader: Any, threads: int | None) -> dict[str, Any]:
    """Return the arguments of a `ThreadLoader` with the batches of one of torch's loaders."""
    arguments = {name: getattr(loader, name) for name in _SAME}
    arguments["dataset"] = loader.dataset
    iterable = isinstance(loader.dataset, _torch.IterableDataset)
    # The workers of an iterable dataset share it out: their number decides about batches.
    wanted = None if iterable else threads
    arguments["num_workers"] = wanted or loader.num_workers or None
    if iterable:
        return arguments | {"batch_size": loader.batch_size, "drop_last": loader.drop_last}
    if loader.num_workers and is_drawn_meanwhile(_index_sampler(loader)):
        arguments["prefetch_factor"] = max(
            1, loader.num_workers * loader.prefetch_factor // arguments["num_workers"]
        )  # it may follow the program: it is read as far ahead as torch reads it
    if loader.batch_sampler is not None:
        return arguments | {"batch_sampler": loader.batch_sampler}
    return arguments | {"batch_size": None, "sampler": loader.sampler}


def _index_sampler(loader: Any) -> Any:
    return loader.sampler if loader.batch_sampler is None else loader.batch_sampler


def _twin(made: Made, arguments: dict[str, Any]) -> tuple[ThreadLoader[Any] | None, bool]:
    """Return the loader of a pass, and whether its threads start with it.

    It is that of the pass before, if the attributes are the same: it may have kept its threads.
    """
    if made.twin is not None:
        before, twin = made.twin
        if before.keys() == arguments.keys() and all(
            map(_is_same, before.values(), arguments.values())
        ):
            return twin, not arguments["persistent_workers"]
    twin = _new(made, arguments)
    made.twin = None if twin is None else (arguments, twin)
    return twin, True


def _is_same(before: Any, value: Any) -> bool:
    return value is before or (isinstance(value, (int, float, str)) and bool(value == before))


def _new(made: Made, arguments: dict[str, Any]) -> ThreadLoader[Any] | None:
    """Return a loader; None, and note the reason, if these arguments are refused."""
    started = {
        name: Begun(arguments[name])
        for name in ("sampler", "batch_sampler")
        if starts_at_iter(arguments.get(name))
    }
    try:
        return ThreadLoader(**arguments | started)
    except (TypeError, ValueError, RuntimeError, AssertionError) as error:
        made.reason = f"ThreadLoader refuses its arguments: {error}"
        return None


def _in_words(arguments: dict[str, Any]) -> str:
    threads = arguments["num_workers"]
    if threads is None:
        return "threads (default)"  # of an iterable dataset one, else as many as are faster
    return f"{threads} thread{'s' if threads > 1 else ''}"


class Threaded:
    """A pass of threads, measured.

    Threads:
        all: consumer.
    """

    def __init__(self, epoch: Any, row: Row) -> None:
        self._epoch = epoch
        self._row = row

    def __iter__(self) -> Threaded:
        return self

    def __len__(self) -> int:
        return len(self._epoch)

    def __next__(self) -> Any:
        try:
            return self._row.next_of(self._epoch.__next__)
        finally:
            self = DROPPED  # an error keeps this frame


class FirstInProcess:
    """A first pass of a loader without workers: its first batch by torch, the rest by threads.

    Args:
        arguments: Of the `ThreadLoader`.
        made: What is kept on torch's loader.
        row: Gets what is measured.
        iterator: torch's own, which has not begun.

    Threads:
        all: consumer.
    """

    def __init__(self, arguments: dict[str, Any], made: Made, row: Row, iterator: Any) -> None:
        self._arguments = arguments
        self._made = made
        self._row = row
        self._length = iterator.__len__
        self._iterator = iterator
        self._begun = False

    def __iter__(self) -> FirstInProcess:
        return self

    def __len__(self) -> int:
        return int(self._length())

    def __next__(self) -> Any:
        try:
            return self._row.next_of(self._advance)
        finally:
            self = DROPPED

    def _advance(self) -> Any:
        try:
            if not self._begun:
                self._begun = True
                return self._first()
            return next(self._iterator)
        finally:
            self = DROPPED

    def _first(self) -> Any:
        """Return the first batch, and decide who makes the others."""
        batch = None
        try:
            watch = FirstBatch(self._iterator, self._arguments)
            batch = next(self._iterator)
            made, row = self._made, self._row
            made.watched = True
            made.reason = watch.reason(batch)
            rest = None if made.reason else _new(made, self._rest())
            if rest is None:
                row.now_loaded_by(made.reason)
            else:
                row.now_loaded_by(None, _in_words(self._arguments))
                self._iterator = iter(rest)
            return batch
        finally:
            self = batch = DROPPED

    def _rest(self) -> dict[str, Any]:
        """Return the arguments of a loader that goes on where torch's iterator is.

        It has a seed, so that it draws none from the state of the program.
        """
        arguments = self._arguments | {"generator": None, "seed": 0}
        name = "sampler" if "sampler" in arguments else "batch_sampler"
        arguments[name] = Rest(self._iterator._sampler_iter)  # noqa: SLF001  # see the canary test
        return arguments


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


class Rest:
    """What is left of a pass over a sampler.

    Args:
        indices: The iterator.
    """

    def __init__(self, indices: Iterator[Any]) -> None:
        self._indices = indices

    def __iter__(self) -> Iterator[Any]:
        return self._indices
