"""How long a test waits for what should come at once; apart from `conftest`, for children too."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

Spawn = Callable[..., Future[Any]]  # the fixture `spawn`

# Seconds before a blocked call counts as a deadlock.  Nothing is timed by it: a test that passes
# does not wait, and on a machine that is busy with other things seconds are soon gone.
PATIENCE = 120.0

# Seconds between two goes of a thread that does something again and again beside what is tested:
# without them it would keep the processor, and on an ordinary build the GIL, from the others.
PAUSE = 0.001


def becomes(condition: Callable[[], bool]) -> bool:
    """Wait until a condition holds; return whether it does.

    Without a GIL, what one thread has made and another drops is freed a moment later.
    """
    deadline = time.monotonic() + PATIENCE
    while not condition() and time.monotonic() < deadline:
        gc.collect()
        time.sleep(PAUSE)
    return condition()
