"""The arguments of `ThreadLoader`, checked, and its attributes: an error names both and the value.

Where torch refuses the same value, the message is torch's.  Torch's attributes may be set between
two epochs; the arguments that torch's loader lacks are fixed once the loader is made.  Subclasses
of torch's use their names for something else (``transform``, ``device``, ``seed``): what a subclass
sets stays as it is, and means nothing here.
"""

from __future__ import annotations

import operator
import warnings
import weakref
from contextlib import suppress
from functools import partial
from operator import attrgetter
from typing import TYPE_CHECKING, Any

import numpy as np

from threadloader import _torch
from threadloader._engine.settings import TORCHS, Settings
from threadloader._order.planner import NO_LENGTH
from threadloader._order.share import PROTOCOL, check_askable
from threadloader._threads.machine import default_threads
from threadloader.errors import ThreadLoaderWarning, checked_count

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from threadloader._batch.layout import Output
    from threadloader._engine.settings import DatasetCopy
    from threadloader._loader.session import Session
    from threadloader._order.share import Uneven
    from threadloader._torch.device import TargetDevice
    from threadloader._worker.failure import OnError

    Check = Callable[[str, Any], Any]  # of a name and a value: returns what is kept, or raises


def given_num_workers(threads: int | None, num_workers: int | None) -> int | None:
    """Return the number of workers that the user gave, by either name; None if by neither.

    Raises:
        TypeError: It is no int.
        ValueError: It is negative, or the two names have two values.
    """
    if threads is not None:
        threads = checked_count("threads", threads)
    if num_workers is None:
        return threads
    try:
        if num_workers < 0:
            return num_workers  # torch refuses a negative one
        num_workers = operator.index(num_workers)
    except TypeError as error:
        error.add_note(f"num_workers must be an int, but got {num_workers!r}")
        raise
    if threads is not None and threads != num_workers:
        msg = f"threads and num_workers are one setting, but got {threads} and {num_workers}"
        raise ValueError(msg)
    return num_workers


def check_shuffle(shuffle: Any, dataset: Any) -> None:
    """Refuse a word but "keyed", all of which torch takes for True, and a dataset without length.

    Raises:
        TypeError: An order is asked for, and the dataset has no length.
        ValueError: It is another word.
    """
    if isinstance(shuffle, str) and shuffle != "keyed":
        msg = f"shuffle must be True, False or 'keyed', but got {shuffle!r}"
        raise ValueError(msg)
    if shuffle and not hasattr(dataset, "__len__"):
        error = TypeError(f"object of type {type(dataset).__name__!r} has no len()")
        error.add_note(NO_LENGTH)
        raise error


def default_num_workers(
    num_workers: int | None, *, iterable: bool, unsharded: bool, transform: Any, in_process: bool
) -> int:
    """Return the number of workers, by default the cores; warn of chosen ones that would be idle.

    Args:
        num_workers: The argument; None for the default.
        iterable: Whether the dataset is an iterable.
        unsharded: Whether it is an iterable of no class of torch's.
        transform: The argument; None for no transform.
        in_process: Whether the calling thread may read: nothing is chosen that needs another one.
    """
    threads = default_threads() if num_workers is None else num_workers
    if not iterable or transform is not None or threads <= 1:
        return threads
    if num_workers is None:
        # As in torch: it may count on itself from epoch to epoch, or follow what the loop sets.
        return int(unsharded or not in_process)
    if unsharded:
        warnings.warn(
            "an iterable that is no IterableDataset is read by one thread, and the others have "
            "nothing to do.  Leave out the number; or give transform=f, which all other threads "
            "apply; or make it an IterableDataset, of which each thread reads a part, by "
            f"get_worker_info() or, with shard=, by a method {PROTOCOL}",
            ThreadLoaderWarning,
            stacklevel=3,
        )
    return threads


def _checked_output(name: str, output: Output | None) -> Output:
    """Return the kind of batches, by default torch's where it is installed.

    Raises:
        ModuleNotFoundError: It is ``"torch"``, and torch is not installed.
        ValueError: It is no such kind.
    """
    if output is None:
        return "torch" if _torch.AVAILABLE else "numpy"
    check_choice(name, output, ("torch", "numpy"))
    if output == "torch" and not _torch.AVAILABLE:
        msg = "output='torch' needs torch: pip install torch (extra: torch)"
        raise ModuleNotFoundError(msg, name="torch")
    return output


def is_iterable(dataset: Any) -> bool:
    """Whether ``dataset`` is read in its own order: torch's IterableDataset, or any iterable.

    Raises:
        TypeError: It is neither iterable nor map-style, or it is a class, or a data pipe.
    """
    _check_object("dataset", dataset)
    if _torch.is_pipe(dataset):  # its workers would all read the whole
        msg = (
            "dataset can't be a data pipe, which threads don't shuffle and share out: give an "
            "IterableDataset, or a map-style dataset"
        )
        raise TypeError(msg)
    if isinstance(dataset, _torch.IterableDataset):
        return True
    if any(hasattr(dataset, name) for name in ("__getitem__", "__getitems__")):
        return False
    if hasattr(dataset, "__iter__"):
        return True
    msg = (
        "dataset must be map-style, with __getitem__, or iterable, with __iter__, "
        f"but got {type(dataset).__name__}"
    )
    raise TypeError(msg)


def check_order(sampler: Any, batch_sampler: Any, generator: Any) -> None:
    """Refuse samplers that can't be iterated over, and a generator that none can draw from."""
    for name, value in (("sampler", sampler), ("batch_sampler", batch_sampler)):
        _check_object(name, value)
        # __getitem__ alone makes an iterable, too.
        if (
            value is not None
            and not hasattr(value, "__iter__")
            and not hasattr(value, "__getitem__")
        ):
            msg = f"{name} must be iterable, but got {value!r}"
            raise TypeError(msg)
    _check_generator(generator)


def _check_object(name: str, value: Any) -> None:
    """Refuse a class in place of its object, unless the class is iterable, as an enumeration is."""
    if isinstance(value, type) and not hasattr(type(value), "__iter__"):
        msg = f"{name} is the class {value.__name__}: give an object of it, {value.__name__}(...)"
        raise TypeError(msg)


def check_no_order(shuffle: object, sampler: Any, batch_sampler: Any) -> None:
    """Refuse an order for an iterable dataset, which has its own, with torch's message."""
    named = {"shuffle": shuffle or None, "sampler": sampler, "batch_sampler": batch_sampler}
    for name, value in named.items():
        if value is not None:
            msg = (
                f"DataLoader with IterableDataset: expected unspecified {name} option, "
                f"but got {name}={value}"
            )
            raise ValueError(msg)


def check_together(given: Mapping[str, Any], *, iterable: bool) -> None:
    """Refuse arguments that exclude one another.

    Args:
        given: All arguments.
        iterable: Whether the dataset is read in its own order.
    """
    shard, prefetch, factor = given["shard"], given["prefetch"], given["prefetch_factor"]
    if given["transform"] is not None and not iterable:
        msg = (
            "transform is for iterable datasets; a map-style dataset applies its own in "
            "__getitem__, which runs in parallel already"
        )
        raise TypeError(msg)
    if shard is not None and iterable:
        check_askable(given["dataset"])
    if shard is not None and not given["in_order"]:
        msg = "shard needs in_order=True: all ranks' batches k are one global batch"
        raise ValueError(msg)
    if given["seed"] is not None and given["generator"] is not None:
        msg = "seed and generator both decide the order: give one of them"
        raise ValueError(msg)
    if prefetch is not None and factor is not None:
        msg = f"prefetch and prefetch_factor are one setting, but got {prefetch} and {factor}"
        raise ValueError(msg)


def plain_int(value: Any) -> Any:
    """Return a whole number of NumPy's as an int, and any other value unchanged."""
    return int(value) if isinstance(value, np.integer) else value


def _check_generator(generator: Any) -> None:
    """Refuse a generator that is neither torch's nor NumPy's."""
    if generator is None or isinstance(generator, _torch.Generator):
        return
    if not isinstance(generator, np.random.Generator):  # which takes a while to import
        msg = (
            f"generator must be a torch.Generator or numpy.random.Generator, but got {generator!r}"
        )
        raise TypeError(msg)


def check_runnable(num_workers: int, timeout: float, prefetch_factor: int | None) -> None:
    """Refuse what torch refuses only when an epoch starts, with its messages."""
    if num_workers < 0:
        msg = f"num_workers option should be non-negative, but got {num_workers}"
        raise AssertionError(msg)
    if timeout < 0:
        raise ValueError("timeout option should be non-negative")
    if num_workers == 0 and timeout != 0:
        msg = "_SingleProcessDataLoaderIter requires timeout == 0"
        error = AssertionError(msg)
        error.add_note("timeout needs threads: without them next() does the work itself")
        raise error
    if prefetch_factor is not None and operator.index(prefetch_factor) <= 0:
        msg = "prefetch_factor must be greater than 0 for MultiProcessingDataLoaderIter"
        raise AssertionError(msg)


def check_timeout(timeout: Any) -> None:
    """Refuse what is no number of seconds; torch refuses a negative one."""
    if not hasattr(timeout, "__float__"):
        msg = f"timeout must be a number of seconds, but got {timeout!r}"
        raise TypeError(msg)


def _checked_seed(name: str, seed: Any) -> int | None:
    """Return the seed as an int; None for none.

    Raises:
        TypeError: It is no whole number.
        ValueError: It is negative, or has more than 64 bits.
    """
    if seed is None:
        return None
    whole_seed = checked_count(name, seed)
    if whole_seed >= 1 << 64:
        msg = f"seed must be less than 2**64, but got {seed}"
        raise ValueError(msg)
    return whole_seed


def _checked_shard(name: str, shard: Any) -> Any:
    """Return the argument; a pair as a tuple of ints.

    Raises:
        TypeError: It is neither a word, nor a pair, nor a mesh of one dimension.
        ValueError: It is another word, or no such rank.
    """
    if shard is None:
        return None
    if isinstance(shard, str):
        check_choice(name, shard, ("auto",), also=", (rank, world_size) or a mesh")
        return shard
    if isinstance(shard, (tuple, list)) and len(shard) == 2:
        rank = checked_count("rank in shard", shard[0])
        world_size = checked_count("world_size in shard", shard[1], at_least=1)
        if rank >= world_size:
            msg = f"shard must be (rank, world_size) with rank < world_size, but got {shard!r}"
            raise ValueError(msg)
        return rank, world_size
    if getattr(shard, "ndim", None) == 1 and hasattr(shard, "get_local_rank"):
        return shard
    one = "one dimension of a mesh, say mesh['dp']"
    msg = f"shard must be 'auto', (rank, world_size) or {one}, but got {shard!r}"
    raise TypeError(msg)


def open_device(output: Output, device: Any) -> TargetDevice:
    """Return the device of an argument; None for the CPU.

    Raises:
        RuntimeError: The device is not there.
        ValueError: It makes tensors, and batches are to be arrays.
    """
    opened = None if device is None else _torch.open_device(device)
    if output == "numpy" and opened is not None and opened is not device:
        msg = f"device={device!r} makes tensors, and can't be with output='numpy'"
        raise ValueError(msg)
    return opened


def checked_function(name: str, value: Any) -> Any:
    """Return a function, or None; refuse what can't be called."""
    if value is not None and not callable(value):
        msg = f"{name} must be callable, but got {value!r}"
        raise TypeError(msg)
    return value


def check_choice(name: str, value: Any, choices: tuple[str, ...], also: str = "") -> None:
    """Refuse a value that is none of the choices.

    Args:
        name: The argument.
        value: Its value.
        choices: The words that it may be.
        also: What else it may be, for the message.
    """
    if not isinstance(value, str) or value not in choices:
        msg = f"{name} must be one of {', '.join(choices)}{also}, but got {value!r}"
        raise ValueError(msg)


def _count(at_least: int, *, optional: bool = False) -> Check:
    def check(name: str, value: Any) -> Any:
        if value is None and optional:
            return None
        return checked_count(name, value, at_least=at_least)

    return check


def _choice(*choices: str, function: bool = False) -> Check:
    def check(name: str, value: Any) -> Any:
        if not (function and callable(value)):
            check_choice(name, value, choices, also=" or a function" * function)
        return value

    return check


def _as_given(_: str, value: Any) -> Any:
    return value


# The arguments that torch's loader lacks, and how each is checked.  They are fixed once the loader
# is made; the others, torch's, may be set between two epochs as torch allows.
ARGUMENTS: Mapping[str, Check] = {
    "prefetch": _count(1, optional=True),
    "output": _checked_output,
    "dataset_copy": _choice("auto", "shared", "deep"),
    "transform": checked_function,
    "seed": _checked_seed,
    "isolate_rng": _as_given,
    "snapshot_every_n_steps": _count(0, optional=True),
    "on_error": _choice("raise", "skip", function=True),
    "max_skipped": _count(0, optional=True),
    "max_threads": _count(1),
    "memory_budget": _count(1, optional=True),
    "shard": _checked_shard,
    "uneven": _choice("drop", "pad", "short"),
    "device": _as_given,
    "device_prefetch": _count(1),
}


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
        if mine.get("_is_plain") and name in ARGUMENTS:
            msg = f"{name!r} can't be set after the loader was made: make a new one"
            raise ValueError(msg)
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
        self.num_workers = checked_count("threads", number)
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
