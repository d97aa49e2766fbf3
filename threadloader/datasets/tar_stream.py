"""TarStream: WebDataset's shards read from their beginning to their end, in replicas.

    shards ──▶ those of this replica, shuffled ──▶ samples ──▶ shuffle buffer ──▶ decoded

A stream only says what is to be read; each `StreamPass` over it has a place, and a state.
"""

from __future__ import annotations

import operator
from typing import TYPE_CHECKING, Any

from threadloader import _torch
from threadloader._threads.worker_info import pass_seed_here
from threadloader.datasets.archives import compression_of, opened
from threadloader.datasets.assembly import Fields
from threadloader.datasets.files import open_files
from threadloader.datasets.members import decoders
from threadloader.datasets.patterns import find_shards, told_shards
from threadloader.datasets.replicas import pass_seed, this_replica
from threadloader.datasets.stream_pass import StreamPass
from threadloader.datasets.tar_reader import TarReader
from threadloader.datasets.tar_samples import SAMPLE_LIMIT, read_samples

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from threadloader.datasets.files import File
    from threadloader.datasets.tar_samples import RawSample

    IterableDataset = _torch.IterableDataset[Any]
else:
    IterableDataset = _torch.IterableDataset

__all__ = ["TarStream"]


class _Shared:
    """What all copies of a stream have in common that worker threads read."""

    __slots__ = ("epoch", "files")

    def __init__(self, files: list[File]) -> None:
        self.files = files
        self.epoch = 0

    def __deepcopy__(self, memo: dict[int, Any]) -> _Shared:
        return self


class TarStream(IterableDataset):
    """Samples of tar archives in a row; see `TarShards` for what a sample is.

    Each rank, and each worker of a rank, reads shards of its own, so there should be several for
    each.  After an error the stream goes on: behind a sample that can't be decoded with the next
    one, behind a damaged place in a shard with the next shard.

    Args:
        pattern: Paths or URLs of ``.tar``, ``.tar.gz`` and ``.tar.zst`` files, with ``{000..123}``
            and ``*``; one or several.
        shuffle: Samples in the shuffle buffer, as they are in the archive; 0 reads all in order, 1
            shuffles the shards alone.
        seed: Decides the order, with the number given to `set_epoch`; the same for all ranks.
            None: the loader's seed decides, ranks always read the same shards, and each epoch is
            different.
        fields: See `TarShards`, and so for `decode` and `transform`.
        decode: Whether members are decoded by their extension, or functions that do.
        transform: Applied to each sample.
        rank: Of this process; None asks torch.distributed, then the environment's ``RANK``.
        world_size: Number of ranks, the same with ``WORLD_SIZE``.
        sample_limit: Bytes that the members of a sample that fields name may have together, and
            all headers.
        options: Of URLs, see `threadloader.datasets.files.open_files`.

    Raises:
        FileNotFoundError: There is no such shard.
        ValueError: An argument is out of its range, or a shard is no archive.

    Threads:
        set_epoch: consumer, between two epochs; close: shared; all else: one thread, the worker
        that owns it.
    """

    def __init__(
        self,
        pattern: str | os.PathLike[str] | Iterable[str | os.PathLike[str]],
        *,
        shuffle: int = 0,
        seed: int | None = None,
        fields: Iterable[str] | None = None,
        decode: bool | Mapping[str, Callable[[bytes], Any]] = True,
        transform: Callable[[Any], Any] | None = None,
        rank: int | None = None,
        world_size: int | None = None,
        sample_limit: int = SAMPLE_LIMIT,
        **options: Any,
    ) -> None:
        if isinstance(shuffle, bool) or operator.index(shuffle) < 0:
            msg = f"shuffle={shuffle} is no number of samples: 1000, say, or 0 for none"
            raise ValueError(msg)
        self.shards = find_shards(pattern, **options)
        for path in self.shards:
            compression_of(path)  # raises at once what the first epoch would
        self.transform = transform
        # Functions of the user's are found here by what copies a dataset for each worker.
        self.decoders = decoders(decode)
        self.fields = Fields.of(fields)
        self.shuffle = int(shuffle)
        self.seed = seed
        self.sample_limit = sample_limit
        self._ranks = rank, world_size
        this_replica(rank, world_size)
        self._shared = _Shared(open_files(self.shards, **options))
        self._passes = 0  # that began on this copy with a seed that another pass began with, too

    def __repr__(self) -> str:
        order = f", shuffle={self.shuffle:,}" if self.shuffle else ""
        return f"TarStream: {told_shards(self.shards)}{order}"

    def set_epoch(self, epoch: int) -> None:
        """Set what decides the order together with the seed."""
        self._shared.epoch = epoch

    def __iter__(self) -> Iterator[Any]:
        """Begin a pass over the shards of the calling worker; see `StreamPass`."""
        replica = this_replica(*self._ranks)
        if self.seed is not None:
            return StreamPass(self, replica, self.seed, self._shared.epoch)
        if pass_seed_here() is None:  # torch's persistent workers have one seed for all epochs
            self._passes += 1
        return StreamPass(self, replica, pass_seed(), self._passes)

    def order_identity(self) -> dict[str, Any]:
        """Return what decides the order; a state of another one is refused by a `ThreadLoader`."""
        seeded = {} if self.seed is None else {"seed": self.seed, "epoch": self._shared.epoch}
        return seeded | {"shuffle": self.shuffle, "shards": len(self.shards)}

    def read_shard(self, number: int) -> Iterator[RawSample]:
        """Yield the samples of a shard, with the data that fields name.

        Args:
            number: Of the shard, from 0.

        Raises:
            DataError: It is damaged.
            OSError: It can't be read.
        """
        file = self._shared.files[number]
        with opened(file) as archive:
            reader = TarReader(archive, file.path, self.sample_limit)
            yield from read_samples(reader, file.path, self.sample_limit, self.fields.wanted)

    def path_of(self, number: int) -> str:
        """Return a shard's path as errors tell it: without what is secret in a URL."""
        return self._shared.files[number].path

    def close(self) -> None:
        """Let go of open files; connections, which they share, end with the stream."""
        for file in self._shared.files:
            file.close()
