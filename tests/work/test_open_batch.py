"""What workers do with a batch leaves nothing behind, whatever the user's code keeps."""

from __future__ import annotations

import gc
import threading
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from support.patience import PATIENCE

from threadloader import ThreadLoader

if TYPE_CHECKING:
    from support.patience import Spawn

pytestmark = pytest.mark.usefixtures("slots_for_all_leaves")


class Retrying:
    """Keeps the errors that it recovers from, as a log does."""

    def __init__(self) -> None:
        self.recovered: list[OSError] = []

    def __len__(self) -> int:
        return 24

    def __getitem__(self, index: int) -> Any:
        try:
            raise OSError(index)
        except OSError as error:
            self.recovered.append(error)
        return np.zeros(4)


def slots_after_breaks(loader: ThreadLoader[Any]) -> int:
    """Leave some epochs after a batch; return how many slots are not free after that."""
    for _ in range(5):
        iterator = iter(loader)
        next(iterator)
        iterator.close()
        del iterator
    for thread in threading.enumerate():
        if "-worker-" in thread.name:
            thread.join(PATIENCE)
            assert not thread.is_alive()
    gc.collect()  # without a GIL an object may outlive its last reference until then
    slots = loader.statistics().slots
    return slots.leased + slots.filling


@pytest.mark.parametrize("threads", [0, 1, 3])
def test_an_error_that_a_dataset_keeps_and_never_raises_keeps_no_slot(
    threads: int, spawn: Spawn
) -> None:
    dataset = Retrying()
    loader: ThreadLoader[Any] = ThreadLoader(
        dataset, 4, threads=threads, output="numpy", dataset_copy="shared"
    )
    assert spawn(slots_after_breaks, loader).result(PATIENCE) == 0
    assert dataset.recovered
