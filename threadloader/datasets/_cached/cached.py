"""Cached: what a dataset returned is kept in a folder, and read from there instead.

Only what is always the same may be kept.  So a dataset that draws random numbers is refused, and
each process loads some of the samples that it finds again, and compares.
"""

from __future__ import annotations

import json
import operator
from contextlib import contextmanager
from hashlib import blake2b
from pathlib import Path
from typing import TYPE_CHECKING, Any

from threadloader import _torch
from threadloader._rng.isolation import redirecting
from threadloader._rng.streams import here
from threadloader.datasets._cached.record import packed, unpacked
from threadloader.datasets._folder_cache import FolderCache
from threadloader.errors import DataError

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Iterator

    Dataset = _torch.Dataset[Any]
else:
    Dataset = _torch.Dataset


_FORMAT = 1  # of the folder


class Cached(Dataset):
    """A dataset whose samples are kept in a folder, for other epochs, threads and processes.

    Of all threads and processes of a node that want a sample, one loads it, and all others read
    what it kept.  Random augmentation comes after the cache: it is the ``transform``.

    A sample comes back as equal values of the same types: numbers, strings, bytes, None, arrays
    (which may be written), dense tensors on the CPU and Pillow's images (pixels, mode and size
    only), alone or in tuples, lists and dicts.

    Args:
        dataset: A map-style dataset that returns the same sample whenever it is asked.
        folder: On a disk of the node.  It may have samples of several datasets.
        key: What names the data and all that is done to it, ``"imagenet-256-v2"`` say.  What was
            kept under another key, or for a dataset of another length or class, is not used.
        transform: Applied to each sample after the cache; may draw random numbers.
        cache_bytes: Bound on what is kept of this dataset.  Each process may exceed it by a 64th.
            Nothing makes room: what does not fit is loaded each time.
        checks: Samples that each process loads again when it finds them, to compare them with what
            is kept.

    Raises:
        TypeError: The dataset has no length or no samples by index.
        ValueError: ``key`` is empty, or a number is negative.

    Threads:
        all: shared.
    """

    __module__ = "threadloader.datasets"  # its public place, which pickles name

    def __init__(
        self,
        dataset: Any,
        folder: str | os.PathLike[str],
        *,
        key: str,
        transform: Callable[[Any], Any] | None = None,
        cache_bytes: int = 100 << 30,
        checks: int = 4,
    ) -> None:
        if not (hasattr(dataset, "__getitem__") and hasattr(dataset, "__len__")):
            msg = f"a dataset with a length and samples by index is needed, not {dataset!r}"
            raise TypeError(msg)
        if not key or not isinstance(key, str):
            msg = f"key={key!r}: a text is needed that names the data and what is done to it"
            raise ValueError(msg)
        if cache_bytes < 1 or checks < 0:
            msg = f"no number may be negative: {cache_bytes=}, {checks=}"
            raise ValueError(msg)
        self.dataset, self.key, self.transform = dataset, key, transform
        self._length = len(dataset)
        kind = type(dataset)
        name = json.dumps([_FORMAT, key, self._length, kind.__module__, kind.__qualname__])
        place = Path(folder).expanduser() / blake2b(name.encode(), digest_size=10).hexdigest()
        self._store = FolderCache(place, cache_bytes, makes_room=False)
        # Copies of this dataset, one for each worker, share it.  It may be counted down once too
        # often or too rarely if two threads do so at once.
        self._checks = [checks]

    def __len__(self) -> int:
        return self._length

    def __repr__(self) -> str:
        return f"Cached({self.dataset!r}, {str(self._store.folder.parent)!r}, key={self.key!r})"

    def __getitem__(self, index: int) -> Any:
        """Return a sample.

        Raises:
            DataError: The dataset drew random numbers, or returned something else than is kept.
            IndexError: There is no such sample.
            TypeError: The sample has something in it that can't be kept.
        """
        place = operator.index(index)
        place += self._length if place < 0 else 0
        if not 0 <= place < self._length:
            msg = f"index {index} is out of range for {self._length:,} samples"
            raise IndexError(msg)
        found = self._kept(place)
        sample = self._loaded(place) if found is None else found[0]
        return sample if self.transform is None else self.transform(sample)

    def _kept(self, index: int) -> tuple[Any] | None:
        """Return the sample that is kept; None if there is none."""
        record = self._store.read(str(index))
        if record is None:
            return None
        try:
            sample = unpacked(index, record)
        except ValueError:  # damaged, by a power failure say
            return None
        if self._checks[0] > 0:
            self._checks[0] -= 1
            self._compare(index, record)
        return (sample,)

    def _loaded(self, index: int) -> Any:
        """Load a sample and keep it, or wait for who does."""
        with self._store.making(str(index)):
            found = self._kept(index)
            if found is not None:
                return found[0]
            record = self._load(index)
            self._store.write(str(index), record)
        return unpacked(index, record)  # the same as it will be from now on

    def _load(self, index: int) -> bytes:
        """Return the record of a sample, from the dataset."""
        with _no_draws(f"sample {index} of {self.key!r}", str(self._store.folder)):
            sample = self.dataset[index]
        return packed(index, sample)

    def _compare(self, index: int, record: bytes) -> None:
        """Load a sample again, and compare it with what is kept.

        Raises:
            DataError: They differ.
        """
        if self._load(index) != record:
            msg = (
                f"the dataset returns another sample {index} than the one kept under the key "
                f"{self.key!r}: give it a new key if data or code have changed; if it is random, "
                "put what is random after the cache: Cached(..., transform=...)"
            )
            raise DataError(msg, str(self._store.folder))


class _NoDraws:
    """A stream that nobody may draw from; see `threadloader._rng.stream.Stream`."""

    def __init__(self, sample: str, folder: str) -> None:
        self._sample, self._folder = sample, folder
        self._drawn = False

    def __getattr__(self, _: str) -> Any:
        self._drawn = True
        self.check()

    def check(self) -> None:
        """Raise an error if somebody drew, and went on after the error."""
        if self._drawn:
            msg = (
                f"{self._sample} drew random numbers, or seeded them, and a cache would give the "
                "same ones in all epochs: put what is random after the cache: "
                "Cached(..., transform=...)"
            )
            raise DataError(msg, self._folder)


@contextmanager
def _no_draws(sample: str, folder: str) -> Iterator[None]:
    """Let the calling thread, if it is a loader's, draw no random numbers."""
    before = here.stream
    if before is None:  # not in a loader: draws are nobody's business there
        yield
        return
    refusing = _NoDraws(sample, folder)
    here.stream = refusing
    try:
        # The calling thread of a loader may draw from torch's default generator.
        with redirecting():
            yield
    finally:
        here.stream = before
    refusing.check()
