"""Waiting in the consumer's thread, where Ctrl-C can come up at any moment.

Not on a `threading.Condition`: it is written in Python, and an interrupt inside of it leaves its
lock held for ever, or releases it twice.  ``with lock`` and `SimpleQueue.get` are written in C: an
interrupt comes before or after them.
"""

from __future__ import annotations

from queue import Empty, SimpleQueue
from time import monotonic
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["Tokens", "wait_until"]

Tokens: TypeAlias = "SimpleQueue[None]"


def wait_until(reached: Callable[[], bool], tokens: Tokens, timeout: float | None) -> bool:
    """Wait until ``reached()`` is true; return False if that takes too long.

    Args:
        reached: Called again with each token.
        tokens: Gets one whenever the answer may have changed.  One too many does no harm.
        timeout: Seconds; None waits for ever.
    """
    end = None if timeout is None else monotonic() + timeout
    while not reached():
        left = None if end is None else end - monotonic()
        if left is not None and left <= 0:
            return False
        try:
            tokens.get(timeout=left)
        except Empty:
            continue  # it may have been reached just now
    return True
