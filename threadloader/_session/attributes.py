"""The attributes of a loader: torch's, which may be set between two epochs, and its own arguments.

Arguments that torch's loader lacks are fixed once the loader is made.  Subclasses of torch's use
their names for something else (``transform``, ``device``, ``seed``): what a subclass sets stays as
it is, and means nothing here.
"""

from __future__ import annotations

import weakref
from contextlib import suppress
from functools import partial
from operator import attrgetter
from typing import TYPE_CHECKING, Any

from threadloader._session.arguments import (
    ARGUMENTS,
    checked_count,
    default_threads,
    open_device,
    warn_of_near_miss,
)
from threadloader._settings import TORCHS, Settings

if TYPE_CHECKING:
    from collections.abc import Callable

    from threadloader._fetch.dataset_copy import DatasetCopy
    from threadloader._fetch.failure import OnError
    from threadloader._layout.leaves import Output
    from threadloader._ranks.share import Uneven
    from threadloader._session.session import Session
    from threadloader._torch.device import TargetDevice

__all__ = ["Attributes"]

_set_by_torch = attrgetter(*TORCHS)


class Attributes:
    """Gives `ThreadLoader` its attributes; that class is the one that has this among its bases."""

    prefetch: int | None
    output: Output
    dataset_copy: DatasetCopy
    transform: Callable[[Any], Any] | None
    seed: int | None
    isolate_rng: bool
    snapshot_every_n_steps: int | None
    on_error: OnError
    max_skipped: int | None
    max_threads: int
    memory_budget: int | None
    shard: Any
    uneven: Uneven
    device: Any
    device_prefetch: int
    num_workers: int

    _fixed: Settings  # but for torch's arguments, which are attributes
    _device: Any  # the argument
    _opened: TargetDevice  # the device; None for none, and in a copy until it is needed

    def _fix(self, own: dict[str, Any], **derived: Any) -> None:
        """Keep the arguments that torch's loader lacks, and show them.

        Args:
            own: Those of `ARGUMENTS`, checked.
            derived: The other fields of `Settings`, but torch's.
        """
        mine, kind = vars(self), type(self)
        for name, value in own.items():
            if name not in mine and not hasattr(kind, name):
                mine[name] = value
        self._device = own.pop("device")
        self._opened = open_device(own["output"], self._device)
        torchs: dict[str, Any] = dict.fromkeys(TORCHS)
        self._fixed = Settings(**torchs, **own, device=None, move=None, pinned=False, **derived)

    def __setattr__(self, name: str, value: Any) -> None:
        mine = vars(self)
        if mine.get("_is_plain"):
            if name in ARGUMENTS:
                msg = f"{name!r} can't be set after the loader was made: make a new one"
                raise ValueError(msg)
            if name[:1] != "_" and name not in mine:
                warn_of_near_miss(name, value, type(self).__init__)
        if name == "num_workers" and "_fixed" in mine:
            self._fixed = self._fixed._replace(tunes_threads=False)
        super().__setattr__(name, value)

    @property
    def threads(self) -> int:
        """Another name for ``num_workers``; it may be set, None to have it measured again."""
        own: int = vars(self).get("threads", self.num_workers)
        return own

    @threads.setter
    def threads(self, threads: int | None) -> None:
        mine = vars(self)
        if "threads" in mine or "_fixed" not in mine:
            mine["threads"] = threads  # a subclass's own
            return
        number = default_threads() if threads is None else threads
        self.num_workers = checked_count("threads", number, at_least=0)
        self._fixed = self._fixed._replace(tunes_threads=threads is None)

    @property
    def _iterator(self) -> Any:
        """The iterator of kept workers, or None, as in torch: without one they are dismissed.

        It is not kept alive, so that an epoch ends where the loop is left.  In its place there is
        one that has ended.
        """
        refer = vars(self).get("_iterator_ref", _none)
        if refer is None:
            msg = f"{type(self).__name__!r} object has no attribute '_iterator'"
            raise AttributeError(msg)
        iterator = refer()
        return iter(()) if iterator is None and refer is not _none else iterator

    @_iterator.setter
    def _iterator(self, iterator: Any) -> None:
        vars(self)["_iterator_ref"] = _none if iterator is None else partial(_same, iterator)
        if iterator is None:
            self._dismiss()

    @_iterator.deleter
    def _iterator(self) -> None:
        vars(self)["_iterator_ref"] = None
        self._dismiss()

    def _note_iterator(self, iterator: Any) -> None:
        """Note the iterator that kept workers load for."""
        with suppress(TypeError):  # what a subclass makes may be an object of C
            vars(self)["_iterator_ref"] = weakref.ref(iterator)

    def _settings(self, *, pinned: bool = False) -> Settings:
        """Return what the loader is set up for now."""
        device: Any = self._opened
        move = None
        if device is None and self._device is not None:
            device = self._opened = open_device(self._fixed.output, self._device)
        if device is not None and not hasattr(device, "receive"):  # a `StreamlessDevice`
            device, move = None, device.move
        torchs = dict(zip(TORCHS, _set_by_torch(self), strict=True))
        return self._fixed._replace(device=device, move=move, pinned=pinned, **torchs)

    def _dismiss(self) -> None:
        session: Session | None = vars(self).get("_session")  # none while torch's __init__ runs
        if session is not None:
            session.kept_workers.forget()


def _none() -> None:
    """Stand for a reference to an iterator where there is none."""


def _same(iterator: Any) -> Any:
    return iterator
