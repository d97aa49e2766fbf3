"""The workers of a loader: of which kinds they are, and until none is left."""

from __future__ import annotations

import gc
import threading

import pytest

from support.patience import PATIENCE

each_kind_of_workers = pytest.mark.parametrize(
    "workers",
    [{"threads": 0}, {"threads": 1}, {"threads": 3}, {"threads": 2, "persistent_workers": True}],
    ids=["inline", "1", "3", "persistent"],
)

SOON = 10.0  # seconds in which threads end that nothing keeps, also on a busy machine


def join_workers() -> None:
    """Wait until no worker thread is left, of those that were told to end."""
    for thread in threading.enumerate():
        if "-worker-" in thread.name:
            thread.join(SOON)
            if thread.is_alive():
                gc.collect()  # its loader may be in a cycle that an earlier test has left
                thread.join(PATIENCE)
            assert not thread.is_alive()
