"""MONAI's ThreadDataLoader: torch's loader, with threads for workers, behind one more thread."""

from __future__ import annotations

import sys
from typing import Any

# MONAI imports it where it is installed, and some of its modules turn a GIL back on.
sys.modules.setdefault("skimage", None)  # type: ignore[arg-type]  # as if it were not installed

from monai.data import ThreadDataLoader  # noqa: E402

from benches.loaders.catalog import Loader, Setup  # noqa: E402

__all__ = ["Rival"]


class Rival(Loader):
    """Load with ``use_thread_workers``; with 0 workers the thread behind the buffer loads."""

    def __init__(self, setup: Setup) -> None:
        own = {} if setup.collate is None else {"collate_fn": setup.collate}
        self._loader: Any = ThreadDataLoader(
            setup.dataset,
            batch_size=setup.batch_size,
            shuffle=setup.shuffle,
            num_workers=setup.workers,
            use_thread_workers=True,
            **own,
        )
