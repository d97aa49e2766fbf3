"""Cached: what a dataset returned is kept, in a folder or in memory, and found there instead.

Only what is always the same may be kept.  So a dataset that draws random numbers is refused, and
some of the samples that are found are loaded again, and compared.  What is random comes after.
"""

from __future__ import annotations

import json
from functools import partial
from hashlib import blake2b
from pathlib import Path
from threading import get_ident
from typing import TYPE_CHECKING, Any, NamedTuple

from threadloader._authors import Dataset, drawing_nothing
from threadloader.datasets._cached.in_memory import InMemory, nbytes_of
from threadloader.datasets._folder_cache import FolderCache
from threadloader.datasets._record import packed, unpacked
from threadloader.errors import DataError, checked_count, checked_index

if TYPE_CHECKING:
    import os
    from collections.abc import Callable
    from contextlib import AbstractContextManager


_FORMAT = 1  # of the folder
_OFTEN = 1000  # samples that a thread finds, of which one is compared


class CacheUse(NamedTuple):
    """What a cache has, and how often it was of use, in this process."""

    found: int  # samples that were kept when they were asked for
    loaded: int  # samples that were loaded from the dataset, those for comparison not counted
    kept: int = 0  # samples in memory; 0 of a folder
    samples: int = 0  # of the dataset
    nbytes: int = 0  # of memory, taken
    is_full: bool = False  # whether a sample did not fit into the memory

    @property
    def hit_rate(self) -> float:
        """The share of the samples asked for that were kept."""
        return self.found / max(1, self.found + self.loaded)


class Cached(Dataset[Any]):
    """A dataset whose samples are kept: in a folder, or in memory that all threads share.

    A folder serves other epochs, threads and processes; memory the threads of this process.  Of all
    that want a sample at the same time, one loads it, and the others wait.  Random augmentation
    comes after the cache: it is the ``transform``.

    A sample comes back as equal values of the same types.  In a folder: numbers, strings, bytes,
    None, arrays, dense tensors on the CPU and Pillow's images (pixels, mode
    and size only), alone or in tuples, lists and dicts.  In memory: all that ``copy.deepcopy``
    takes.  Each access returns a copy, which may be changed.

    Args:
        dataset: A map-style dataset that returns the same sample whenever it is asked.
        folder: On a disk of the node.  It may have samples of several datasets.
        key: For a folder: a name of the data and of all that is done to it, ``"imagenet-256-v2"``
            say.  Samples under another key, or of a dataset of another length or class, are not
            used.
        memory: Instead of a folder: the most bytes to take, ``8 << 30`` or ``"8GiB"``.  Less is
            taken where less is free.
        transform: Applied to each sample after the cache; may draw random numbers.
        cache_bytes: Bound of this dataset's bytes in the folder.  Each process may exceed it by a
            64th.  Samples beyond this bound, or beyond ``memory``, are loaded each time.
        checks: Samples that each process loads again when it finds them, and compares.

    Raises:
        TypeError: The dataset has no length or no samples by index.
        ValueError: There are both folder and memory, or neither; or no ``key`` for the folder; or a
            number is negative.

    Threads:
        all: shared.
    """

    __module__ = "threadloader.datasets"  # its public place, which pickles name

    def __init__(
        self,
        dataset: Any,
        folder: str | os.PathLike[str] | None = None,
        *,
        key: str = "",
        memory: int | str | None = None,
        transform: Callable[[Any], Any] | None = None,
        cache_bytes: int = 100 << 30,
        checks: int = 4,
    ) -> None:
        if not (hasattr(dataset, "__getitem__") and hasattr(dataset, "__len__")):
            msg = f"a dataset with a length and samples by index is needed, not {dataset!r}"
            raise TypeError(msg)
        if (folder is None) is (memory is None):
            msg = f"a folder or memory is needed, not both: {folder=}, {memory=}"
            raise ValueError(msg)
        if folder is not None and not (key and isinstance(key, str)):
            msg = f"key={key!r} must be a text that names the data and all that is done to it"
            raise ValueError(msg)
        checked_count("cache_bytes", cache_bytes, at_least=1)
        checked_count("checks", checks)
        self.dataset, self.key, self.transform = dataset, key, transform
        self._length = len(dataset)
        self._samples: InMemory | _InFolder
        if memory is not None:
            self._samples = InMemory(nbytes_of(memory))
        else:
            kind = type(dataset)
            name = json.dumps([_FORMAT, key, self._length, kind.__module__, kind.__qualname__])
            place = Path(folder or "").expanduser()
            place /= blake2b(name.encode(), digest_size=10).hexdigest()
            self._samples = _InFolder(FolderCache(place, cache_bytes, makes_room=False))
        # Copies of this dataset, one for each worker, share these.
        self._counts = _Counts(checks)

    def __len__(self) -> int:
        return self._length

    def __repr__(self) -> str:
        key = f", key={self.key!r}" if self.key else ""
        return f"Cached({self.dataset!r}, {self._samples!r}{key})"

    def __getitem__(self, index: int) -> Any:
        """Return a sample.

        Raises:
            DataError: The dataset drew random numbers, or returned something else than is kept.
            IndexError: There is no such sample.
            TypeError: The sample has something in it that can't be kept.
        """
        place = checked_index(index, self._length, "samples")
        found = self._find(place)
        self._counts.add(found=found is not None)
        sample = self._loaded(place) if found is None else found[0]
        return sample if self.transform is None else self.transform(sample)

    def cache_use(self) -> CacheUse:
        """Return what is kept, and how often samples were found."""
        loaded, found = self._counts.total()
        use, memory = CacheUse(found, loaded, samples=self._length), self._samples
        if isinstance(memory, InMemory):
            use = use._replace(kept=len(memory), nbytes=memory.used, is_full=memory.is_full)
        return use

    def _find(self, index: int) -> tuple[Any] | None:
        """Return the sample that is kept; None if there is none."""
        found = self._samples.find(index)
        if found is not None and self._counts.is_due():
            self._compare(index)
        return found

    def _loaded(self, index: int) -> Any:
        """Load a sample and keep it, or wait for who does."""
        with self._samples.making(index):
            found = self._find(index)
            return self._samples.keep(index, self._load(index)) if found is None else found[0]

    def _load(self, index: int) -> Any:
        """Return a sample from the dataset.

        Raises:
            DataError: It drew random numbers.
        """
        with drawing_nothing(partial(self._refused, index)):
            return self.dataset[index]

    def _compare(self, index: int) -> None:
        """Load a sample again, and compare it with what is kept.

        Raises:
            DataError: They differ.
        """
        if not self._samples.has(index, self._load(index)):
            msg = (
                f"the dataset returns another sample {index} than the one kept of {self._name}: "
                "give it a new key if data or code have changed; if it is random, put random "
                "transforms after the cache: Cached(..., transform=...)"
            )
            raise DataError(msg, repr(self._samples))

    def _refused(self, index: int) -> DataError:
        msg = (
            f"sample {index} of {self._name} drew random numbers, or seeded them, and a cache "
            "would give the same ones in all epochs: put random transforms after the cache: "
            "Cached(..., transform=...)"
        )
        return DataError(msg, repr(self._samples))

    @property
    def _name(self) -> str:
        return repr(self.key) if self.key else type(self.dataset).__name__


class _InFolder:
    """Samples in a folder, a record each; as `InMemory`.

    Threads:
        all: shared, also with other processes.
    """

    def __init__(self, store: FolderCache) -> None:
        self._store = store

    def __repr__(self) -> str:
        return str(self._store.folder)

    def find(self, index: int) -> tuple[Any] | None:
        """Return the sample that is kept; None if there is none."""
        record = self._store.read(str(index))
        try:
            return None if record is None else (unpacked(index, record),)
        except ValueError:  # damaged, by a power failure say
            return None

    def making(self, index: int) -> AbstractContextManager[None]:
        """Load a sample, or wait for who does."""
        return self._store.making(str(index))

    def keep(self, index: int, sample: Any) -> Any:
        """Keep a sample if there is room, and return it as it will be from now on."""
        record = packed(index, sample)
        self._store.write(str(index), record)
        return unpacked(index, record)

    def has(self, index: int, sample: Any) -> bool:
        """Whether the sample that is kept is equal to this one."""
        return self._store.read(str(index)) in (None, packed(index, sample))


class _Counts:
    """How often samples were found: each thread has its own counts.

    Args:
        checks: Samples that are still to be compared.  It may be counted down once too often or too
            rarely if two threads do so at once.

    Threads:
        all: shared.
    """

    def __init__(self, checks: int) -> None:
        self.checks = self._checks = checks
        self._of: dict[int, list[int]] = {}  # by thread: loaded, found

    def __deepcopy__(self, _memo: dict[int, Any]) -> _Counts:
        return self

    def is_due(self) -> bool:
        """Whether a sample that was found is to be compared."""
        if self.checks > 0:
            self.checks -= 1
            return True
        return self._checks > 0 and self._mine()[1] % _OFTEN == _OFTEN - 1

    def add(self, *, found: bool) -> None:
        """Count a sample."""
        self._mine()[found] += 1

    def _mine(self) -> list[int]:
        thread = get_ident()
        return self._of.get(thread) or self._of.setdefault(thread, [0, 0])

    def total(self) -> tuple[int, int]:
        """Return how many samples were loaded, and how many were found."""
        counts = list(self._of.values())
        return sum(loaded for loaded, _ in counts), sum(found for _, found in counts)
