"""A loader's arguments as its attributes, beside those that a subclass has of its own.

Arguments that torch's loader lacks have names that subclasses of torch's use for something else:
``transform``, ``device``, ``seed``.  So the arguments that count are in ``_arguments``, and an
attribute shows one unless it is the subclass's: of its class, or set in ``__init__``.
"""

from __future__ import annotations

import sys
import weakref
from contextlib import suppress
from functools import partial
from operator import attrgetter, is_
from typing import TYPE_CHECKING, Any, ClassVar

from threadloader._session.arguments import (
    checked_attribute,
    checked_count,
    default_threads,
    open_device,
    warn_of_near_miss,
)
from threadloader._settings import KEPT, TORCHS, Settings

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from types import FrameType

    from threadloader._fetch.dataset_copy import DatasetCopy
    from threadloader._fetch.on_error import OnError
    from threadloader._layout.leaves import Output
    from threadloader._ranks.share import Uneven
    from threadloader._session.session import Session
    from threadloader._torch.device import TargetDevice

__all__ = ["Attributes"]

# What the settings follow from, with our own arguments, the device and the batch sampler's size.
_inputs_of = attrgetter(*TORCHS, "prefetch_factor", *(f"_{name}" for name in KEPT))


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
    batch_sampler: Any

    _arguments: dict[str, Any]  # those of the names above
    _own_names: set[str]  # those among them that a subclass has of its own
    _is_subclass: ClassVar[bool]
    _defaults: ClassVar[Mapping[str, Any]]
    _names: ClassVar[tuple[str, ...]]  # of all arguments
    _opened: tuple[Any, TargetDevice]  # a device, as it was given and opened
    _tunes_threads: bool

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        cls._is_subclass = Attributes not in cls.__bases__
        if not cls._is_subclass:
            make: Any = cls.__init__
            cls._defaults = make.__kwdefaults__
            code = make.__code__
            cls._names = code.co_varnames[1 : code.co_argcount + code.co_kwonlyargcount]

    def _keep_arguments(self, **arguments: Any) -> None:
        """Keep the arguments, and show them; one that was not given replaces no attribute."""
        mine, kind, defaults = vars(self), type(self), self._defaults
        checked = {name: checked_attribute(name, value) for name, value in arguments.items()}
        self._own_names = {
            name
            for name, value in arguments.items()
            if value is defaults[name] and (name in mine or hasattr(kind, name))
        }
        mine["_arguments"] = checked
        mine.update((name, checked[name]) for name in checked.keys() - self._own_names)

    def __setattr__(self, name: str, value: Any) -> None:
        mine = vars(self)
        arguments = mine.get("_arguments")  # None as long as torch's __init__ has not returned
        if name == "num_workers":
            mine["_tunes_threads"] = False
        elif arguments is None:
            pass
        elif name in arguments:
            if not self._is_own(name):
                arguments[name] = value = checked_attribute(name, value)
        elif name[:1] != "_" and name not in mine and not self._is_subclass:
            warn_of_near_miss(name, value, self._names)
        super().__setattr__(name, value)

    def _is_own(self, name: str) -> bool:
        """Whether an attribute that is set with the name of an argument is a subclass's own."""
        if name in self._own_names:
            return True
        if not _is_being_made(self):
            return False
        self._own_names.add(name)
        return True

    @property
    def threads(self) -> int:
        """Another name for ``num_workers``; it may be set, None to have it measured again."""
        own: int = vars(self).get("threads", self.num_workers)
        return own

    @threads.setter
    def threads(self, threads: int | None) -> None:
        mine = vars(self)
        if "threads" in mine or "_arguments" not in mine or _is_being_made(self):
            mine["threads"] = threads  # a subclass's own
            return
        number = default_threads() if threads is None else threads
        self.num_workers = checked_count("threads", number, at_least=0)
        self._tunes_threads = threads is None

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

    def _open_device(self) -> TargetDevice:
        device = self._arguments["device"]
        if device is None:
            return None
        if self._opened[0] is not device:
            self._opened = device, open_device(self._arguments["output"], device)
        return self._opened[1]

    def _settings(self, *, pinned: bool = False) -> Settings:
        opened = self._open_device()
        rows = getattr(self.batch_sampler, "batch_size", None)
        inputs = (*_inputs_of(self), *self._arguments.values(), rows, opened, pinned)
        cached: tuple[Any, Settings] | None = vars(self)["_cached_settings"]
        # Made anew only if something has changed: it takes as long as a small batch.
        if cached is not None and all(map(is_, inputs, cached[0])):
            return cached[1]
        device, move = opened, None
        if opened is not None and not hasattr(opened, "receive"):  # a `StreamlessDevice`
            device, move = None, opened.move
        settings = Settings.of(
            self,
            self._arguments,
            device=device,
            move=move,
            pinned=pinned,
            **{name: getattr(self, f"_{name}") for name in KEPT},
        )
        vars(self)["_cached_settings"] = inputs, settings
        return settings

    def _dismiss(self) -> None:
        session: Session | None = vars(self).get("_session")  # none while torch's __init__ runs
        if session is not None:
            session.kept_workers.forget()


def _none() -> None:
    """Stand for a reference to an iterator where there is none."""


def _same(iterator: Any) -> Any:
    return iterator


def _is_being_made(loader: Attributes) -> bool:
    """Whether the calling thread is in an ``__init__`` of this object, which is a subclass's."""
    frame: FrameType | None = sys._getframe(3) if loader._is_subclass else None  # noqa: SLF001
    while frame is not None:
        code = frame.f_code
        named = code.co_name == "__init__" and code.co_argcount > 0
        if named and frame.f_locals.get(code.co_varnames[0]) is loader:
            return True
        frame = frame.f_back
    return False
