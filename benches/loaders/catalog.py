"""The list of rivals, and what a rival is: an iterable of batches, once per epoch.

Every rival is a class made from the same four arguments. It keeps what its users
would keep between epochs (its pool, its persistent workers), and nothing is made
before it is constructed, so that the time to the first batch has everything in it.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from collections.abc import Iterator

    from benches.harness.record import Output
    from benches.workloads.catalog import Dataset

__all__ = ["LOADERS", "Loader", "Rival", "import_rival"]

#: Rivals and what each is, for the tables. `processes` is the limit, no loader.
LOADERS = {
    "bare_loop": "for loop and np.stack",
    "processes": "the limit: a bare loop per core, one reused batch each",
    "executor": "ThreadPoolExecutor over batches",
    "torch_dataloader": "torch.utils.data.DataLoader",
    "threadloader": "threadloader.ThreadLoader",
}


class Loader(Protocol):
    """One rival, ready to be iterated any number of times, one epoch each."""

    def __iter__(self) -> Iterator[Any]:
        """Start an epoch; yield batches ``(values, labels)`` in order."""
        ...

    def close(self) -> None:
        """Stop threads and processes."""
        ...

    def counters(self) -> dict[str, float]:
        """Return the loader's own counters, where it has any."""
        ...


class Rival(Protocol):
    """The class ``Rival`` of each module here."""

    def __call__(
        self, dataset: Dataset, batch_size: int, workers: int, output: Output | None
    ) -> Loader:
        """Make a loader.

        Args:
            dataset: What to load, in the order of its indices.
            batch_size: Samples in a batch; divides the dataset's length.
            workers: Threads or processes.
            output: ``"numpy"`` for NumPy batches where torch is installed too.
        """
        ...


def import_rival(name: str) -> Rival:
    """Import a rival and all that it needs; that is not part of any timing."""
    rival: Rival = import_module(f"benches.loaders.{name}").Rival
    return rival
