"""Ranks make sure, before their first batch, that they load the same data in the same order.

    each rank: what it loads -> the ranks' store -> the last compares -> its verdict -> each rank

Ranks that differ would train on wrong data, or wait for one another for ever.  There is no
collective, so a rank that never comes is found out, too, and named.
"""

from __future__ import annotations

import json
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from threadloader._order.share import named_ranks, no_answer
from threadloader._order.waiting import comes, stay
from threadloader._threads.waiting import Stop
from threadloader.errors import RankError, warn_user

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


def agree(
    store: Any,
    prefix: str,
    rank: int,
    ranks: Sequence[int],
    record: Mapping[str, Any],
    seconds: float,
) -> Mapping[str, Any]:
    """Return the record of the first rank, once all ranks are known to have the same.

    Args:
        store: Has ``set``, ``compare_set``, ``get``, ``add``, ``check`` and ``wait`` as a
            `torch.distributed.Store`.
        prefix: Of all keys, the same on all ranks, and of no other agreement.
        rank: Of this process.
        ranks: All that take part, in order.
        record: What this rank has, JSON-able.  All but ``"drawn"`` and ``"rank"`` is to be
            equal; the ranks' ``"rank"`` are to be different.
        seconds: How long to wait for other ranks.

    Raises:
        RankError: A rank has something else, or did not come in time, and the message names it; or
            the store does not answer.
    """
    verdict = f"{prefix}verdict"
    try:
        store.set(f"{prefix}{rank}", json.dumps(record))
        if store.add(f"{prefix}came", 1) < len(ranks):
            _wait(store, prefix, rank, ranks, seconds)
        if not store.check([verdict]):
            _say(store, prefix, ranks, _verdict(store, prefix, ranks, seconds))
        result = json.loads(store.get(verdict))
        stay(store, prefix, result["came"], is_first=rank == ranks[0])
    except Warning:  # the user's filter makes an error of it
        raise
    except Exception as error:
        raise RankError(no_answer(error)) from error
    if "error" in result:
        raise RankError(result["error"])
    agreed: Mapping[str, Any] = result["record"]
    return agreed


def _wait(store: Any, prefix: str, rank: int, ranks: Sequence[int], seconds: float) -> None:
    """Wait for the verdict; say who is missing if it takes long."""

    def takes_long() -> None:
        came = _came(store, prefix, ranks)
        missing = [rank for rank in ranks if rank not in came]
        if missing and rank == came[0]:  # one of them says so
            warn_user(
                f"{named_ranks(missing)} began no epoch of this loader yet, and others wait for up "
                f"to {seconds:.0f} s"
            )

    try:
        comes(store, f"{prefix}verdict", seconds, Stop(), takes_long)
    except BaseException:
        left = f"rank {rank} left while the ranks agreed on what they load: an error, or Ctrl-C"
        with suppress(Exception):  # the store may be gone
            _say(store, prefix, ranks, {"error": left})
        raise


def _say(store: Any, prefix: str, ranks: Sequence[int], verdict: dict[str, Any]) -> None:
    """Say what was found, if nobody has yet: all ranks are to find the same."""
    came = len(_came(store, prefix, ranks))
    store.compare_set(f"{prefix}verdict", "", json.dumps({**verdict, "came": came}))


def _came(store: Any, prefix: str, ranks: Sequence[int]) -> list[int]:
    """Return the ranks that have said what they load."""
    if store.check([f"{prefix}{rank}" for rank in ranks]):  # asked at once
        return list(ranks)
    return [rank for rank in ranks if store.check([f"{prefix}{rank}"])]


def _verdict(store: Any, prefix: str, ranks: Sequence[int], seconds: float) -> dict[str, Any]:
    came = _came(store, prefix, ranks)
    if missing := [rank for rank in ranks if rank not in came]:
        msg = (
            f"{named_ranks(missing)} began no epoch of this loader within {seconds:.0f} s, and "
            "others wait: all ranks must iterate over their loaders in the same order"
        )
        return {"error": msg}
    first, *others = (json.loads(store.get(f"{prefix}{rank}")) for rank in ranks)
    places = {first["rank"]: ranks[0]}
    for rank, other in zip(ranks[1:], others, strict=True):
        differing = [
            f"{name} is {other.get(name)!r} there, and {first.get(name)!r} on rank {ranks[0]}"
            for name in sorted({*first, *other} - {"drawn", "rank"})
            if other.get(name) != first.get(name)
        ]
        if differing:
            return {"error": f"rank {rank} does not load the same: {'; '.join(differing)}"}
        same = places.setdefault(other["rank"], rank)
        if same != rank:
            return {"error": f"ranks {same} and {rank} both load the share {other['rank']}"}
    return {"record": first}
