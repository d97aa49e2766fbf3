"""How long a test waits for what should come at once; apart from `conftest`, for children too."""

from __future__ import annotations

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
