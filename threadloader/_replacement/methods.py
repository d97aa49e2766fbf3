"""The methods of torch's class that are exchanged: making a loader, and iterating over it.

This module imports neither torch nor NumPy: the methods are exchanged while torch is being
imported, and in programs that set environment variables for both.
"""

from __future__ import annotations

import sys
from functools import partial, wraps
from time import perf_counter
from typing import TYPE_CHECKING, Any

from threadloader._replacement.places import made_here
from threadloader._replacement.report import Made, Report

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType

__all__ = ["exchange"]

KEPT = "_threadloader_made"  # the attribute of a loader
ROW = "_threadloader_row"  # of an iterator


def exchange(module: ModuleType, report: Report, *, threads: int | None, replace: bool) -> None:
    """Let the loaders of torch's class be loaded by threads, and be measured.

    Args:
        module: ``torch.utils.data.dataloader``.
        report: Gets what is measured.
        threads: Of each loader of a map-style dataset; None for as many as it has workers, or the
            default if it has none.
        replace: Whether threads load; else torch does as before, and is measured.
    """
    _Exchange(module, report, threads=threads, replace=replace).install()


class _Exchange:
    """torch's methods, and those that take their places; for the arguments see `exchange`."""

    def __init__(
        self, module: ModuleType, report: Report, *, threads: int | None, replace: bool
    ) -> None:
        # Private names of torch's: a canary test compares.
        self._loader_class: Any = module.DataLoader
        self._iterator_class: Any = module._BaseDataLoaderIter  # noqa: SLF001
        self._make_iterator = self._loader_class._get_iterator  # noqa: SLF001
        self._report = report
        self._threads = threads
        self._replace = replace

    def install(self) -> None:
        """Exchange the methods.

        Frameworks ask for the arguments of `__init__`, hence `wraps`.
        """
        loader_class, iterator_class = self._loader_class, self._iterator_class
        make, iterate, advance = (
            loader_class.__init__,
            loader_class.__iter__,
            iterator_class.__next__,
        )

        @wraps(make)
        def __init__(loader: Any, *args: Any, **kwargs: Any) -> None:  # noqa: N807
            make(loader, *args, **kwargs)
            vars(loader)[KEPT] = Made(made_here(sys._getframe(1)))  # noqa: SLF001  # documented

        @wraps(iterate)
        def __iter__(loader: Any) -> Any:  # noqa: N807
            return self._iterate(loader, iterate)

        @wraps(self._make_iterator)
        def _get_iterator(loader: Any) -> Any:
            return self._begin(loader)

        @wraps(advance)
        def __next__(iterator: Any) -> Any:  # noqa: N807
            row = vars(iterator).get(ROW)
            return advance(iterator) if row is None else row.next_of(partial(advance, iterator))

        loader_class.__init__, loader_class.__iter__ = __init__, __iter__
        loader_class._get_iterator = _get_iterator  # noqa: SLF001
        iterator_class.__next__ = __next__

    def _iterate(self, loader: Any, iterate: Callable[[Any], Any]) -> Any:
        """Return what ``iter(loader)`` returns.

        Args:
            loader: One of torch's.
            iterate: torch's own `__iter__`, which calls `_get_iterator`.
        """
        made = _made(loader)
        get_iterator = type(loader)._get_iterator  # noqa: SLF001
        overridden = get_iterator is not self._loader_class._get_iterator  # noqa: SLF001
        threaded = self._by_threads(loader, made, overridden=overridden)
        if threaded is not None:
            return threaded
        made.inside = True
        try:
            return self._measured(loader, made, partial(iterate, loader))
        finally:
            made.inside = False

    def _begin(self, loader: Any) -> Any:
        """Return what ``loader._get_iterator()`` returns; subclasses call it, too."""
        made = _made(loader)
        if made.inside:  # it is measured, and torch's
            return self._make_iterator(loader)
        threaded = self._by_threads(loader, made, overridden=False)
        if threaded is not None:
            return threaded
        return self._measured(loader, made, partial(self._make_iterator, loader))

    def _by_threads(self, loader: Any, made: Made, *, overridden: bool) -> Any:
        """Return an iterator that loads by threads; None if torch must load."""
        if not self._replace or made.reason is not None:
            return None
        from threadloader._replacement.threaded import by_threads  # noqa: PLC0415  # imports torch

        return by_threads(
            loader,
            made,
            self._report,
            partial(self._make_iterator, loader),
            threads=self._threads,
            overridden=overridden,
        )

    def _measured(self, loader: Any, made: Made, begin: Callable[[], Any]) -> Any:
        """Return torch's iterator, which is measured from now on."""
        row = self._report.row(made.place, loader)
        row.begins(made.reason)
        began = perf_counter()
        iterator = begin()
        row.waited(perf_counter() - began)
        if isinstance(iterator, self._iterator_class):
            vars(iterator)[ROW] = row
        return iterator


def _made(loader: Any) -> Made:
    """Return what is known of a loader, also of one that was unpickled or made before."""
    made: Made | None = vars(loader).get(KEPT)
    if made is None:
        place = made_here(sys._getframe(3))  # noqa: SLF001  # documented
        made = vars(loader)[KEPT] = Made(place)
    return made
