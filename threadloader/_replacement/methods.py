"""The methods of torch's class that are exchanged: making a loader, and iterating over it.

This module imports neither torch nor NumPy: the methods are exchanged while torch is being
imported, and in programs that set environment variables for both.
"""

from __future__ import annotations

import sys
from functools import partial, wraps
from time import perf_counter
from typing import TYPE_CHECKING, Any

from threadloader._replacement.report import Made, RunReport, made_here

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType

__all__ = ["Exchange"]

KEPT = "_threadloader_made"  # the attribute of a loader
ROW = "_threadloader_row"  # of an iterator


class Exchange:
    """torch's methods, and those that take their places.

    Args:
        module: ``torch.utils.data.dataloader``.
        report: Gets what is measured.
        threads: Of each loader of a map-style dataset; None for as many as it has workers, or the
            default if it has none.
        replace: Whether threads load; else torch does as before, and is measured.
    """

    def __init__(
        self, module: ModuleType, report: RunReport, *, threads: int | None, replace: bool
    ) -> None:
        # Private names of torch's.
        self._loader_class: Any = module.DataLoader
        self._iterator_class: Any = module._BaseDataLoaderIter  # noqa: SLF001
        self._make_iterator = self._loader_class._get_iterator  # noqa: SLF001
        self._report = report
        self._threads = threads
        self._replace = replace

    def install(self) -> None:
        """Let the loaders of torch's class be loaded by threads, and be measured.

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
        """Return what ``iter(loader)`` returns: as in torch, what ``_get_iterator()`` makes.

        Args:
            loader: One of torch's.
            iterate: torch's own `__iter__`, which lets kept workers begin again.
        """
        made = _made(loader)
        if not (loader.persistent_workers and loader.num_workers):
            return loader._get_iterator()  # noqa: SLF001  # subclasses override it
        if loader._iterator is None:  # noqa: SLF001  # as torch keeps it
            made.twin = None  # it is the first pass, or the program has dismissed the workers
        elif not self._may_replace(made):
            return self._measured(loader, made, partial(iterate, loader))
        loader._iterator = None  # noqa: SLF001  # the same
        loader._iterator = loader._get_iterator()  # noqa: SLF001  # the same
        return loader._iterator  # noqa: SLF001  # the same

    def _begin(self, loader: Any) -> Any:
        """Return what ``loader._get_iterator()`` returns; subclasses call it, too."""
        made = _made(loader)
        if self._may_replace(made):
            # It imports torch.
            from threadloader._replacement.threaded import by_threads  # noqa: PLC0415

            row = self._report.row(made.place, loader)
            threaded = by_threads(loader, made, row, threads=self._threads)
            if threaded is not None:
                return threaded
        return self._measured(loader, made, partial(self._make_iterator, loader))

    def _may_replace(self, made: Made) -> bool:
        return self._replace and made.reason is None

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
