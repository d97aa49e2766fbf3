"""Waiting for a key in the ranks' store, which nothing ends before: neither `close` nor Ctrl-C."""

from __future__ import annotations

from datetime import timedelta
from time import monotonic
from typing import TYPE_CHECKING, Any

from threadloader._threads.waiting import wait

if TYPE_CHECKING:
    from collections.abc import Callable

    from threadloader._threads.waiting import Stop


# After so long torch prints a warning: so a key is waited for once.  Then the store is asked again
# and again, which a `Stop` ends.
STORE_SECONDS = 5.0
ASKING_SECONDS = 0.5
STAYING_SECONDS = 2.0  # of the first rank, for the others to ask once more


def comes(
    store: Any, key: str, seconds: float, stop: Stop, takes_long: Callable[[], object]
) -> bool:
    """Wait for a key; return False if it does not come in time.

    Args:
        store: See `Votes`.
        key: The key.
        seconds: How long to wait for it.
        stop: Ends the waiting, after `STORE_SECONDS` at most; then True is returned, too.
        takes_long: Called once if it has not come soon.
    """
    began = monotonic()
    # Far shorter than the limit: by then all ranks that wait have said so.
    if comes_soon(store, key, min(STORE_SECONDS, seconds / 4)):
        return True
    takes_long()
    while not (stop.is_set or store.check([key])):
        wait((stop,), min(ASKING_SECONDS, seconds / 4))
        if monotonic() - began > seconds and not store.check([key]):
            return False
    return True


def stay(store: Any, prefix: str, ranks: int, *, is_first: bool) -> None:
    """Tell that this rank needs nothing more of the store; let the first wait for all, or a while.

    As a rule the store is in the process of the first rank, which may end now.

    Args:
        store: See `Votes`.
        prefix: Of all keys.
        ranks: How many will tell.
        is_first: Whether this is the first rank.
    """
    if store.add(f"{prefix}read", 1) == ranks:
        store.set(f"{prefix}all read", "")
    elif is_first:
        comes_soon(store, f"{prefix}all read", STAYING_SECONDS)


def comes_soon(store: Any, key: str, seconds: float) -> bool:
    """Wait in a store for a key; return whether it came.  Nothing ends this before."""
    try:
        store.wait([key], timedelta(seconds=seconds))
    except Exception:  # noqa: BLE001  # a timeout, by a class that differs between stores
        return False
    return True
