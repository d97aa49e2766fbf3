"""Ranks make sure, before their first batch, that they load the same data in the same order.

    each rank: what it loads -> the ranks' store -> the last compares -> its verdict -> each rank

Ranks that differ would train on wrong data, or wait for one another for ever.  There is no
collective, so a rank that never comes is found out, too, and named.
"""

from __future__ import annotations

import itertools
import json
import zlib
from contextlib import suppress
from queue import Empty, SimpleQueue
from threading import Thread
from typing import TYPE_CHECKING, Any

from threadloader import _torch
from threadloader._order.known_samplers import known
from threadloader._order.shares import named_ranks, no_answer
from threadloader._rng.generators import encoded_state, state_of
from threadloader._rng.seeds import draw_seed
from threadloader._session.state import fingerprint_of
from threadloader._version import __version__
from threadloader._warnings import warn_user
from threadloader.errors import RankError, StateError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from threadloader._epoch.steps import Steps
    from threadloader._order.shares import Share
    from threadloader._rng.seeds import Seeds
    from threadloader._session.run_state import State
    from threadloader._settings import Settings

__all__ = ["Agreement", "agree"]

SECONDS = 600.0  # to wait for other ranks: one may prepare the data while others wait
TELLING_SECONDS = 5.0  # after which it is said who is missing

_agreements = itertools.count()


class Agreement:
    """What the ranks of one loader have agreed on.

    Threads:
        all: planner only.
    """

    def __init__(self) -> None:
        self._compared = False  # whether this rank is known to load what the others load
        self._number = 0  # of the latest comparison
        self._epochs = 0  # that ranks have voted on since then

    def seed(
        self, settings: Settings, share: Share | None, seeds: Seeds, saved: State | None
    ) -> int | None:
        """Return the seed of a run: the user's, or one that the ranks agree on now.

        Args:
            settings: Of the loader.
            share: Of this rank; None where all is loaded here.
            seeds: Of the epoch; are told what was agreed.
            saved: The state to continue from; None for the beginning.

        Returns:
            None where a generator or the process's random state draws.

        Raises:
            RankError: The ranks differ.
            StateError: The state does not say how ranks draw.
            ValueError: Nothing can make the ranks' orders equal.
        """
        given = settings.generator is not None
        seed = settings.seed
        if seed is None and not given:
            seed = seeds.agreed if saved is None else saved["draws"].get("agreed")
        if share is None or share.world_size == 1:
            return seed
        unknown = seed is None and not given
        if unknown and saved is not None and saved["begun"]:
            msg = (
                "the state was saved by one process without seed=: ranks can go on from it at the "
                "beginning of an epoch only"
            )
            raise StateError(msg)
        if self._compared and saved is None:
            return seed
        store, ranks = _store_of(settings.shard, share)
        if store is not None:
            record = {
                **fingerprint_of(settings, iterable=settings.iterable),
                "batch_size": settings.batch_size,
                "generator's state": _digest_of(settings.generator),
                "rank": share.rank,
                "drawn": draw_seed(None) if unknown and share.rank == 0 else None,
                # Of them each reads a part of its own.
                "replicas": max(1, settings.num_workers) if settings.replicated else 1,
                "seed": settings.seed,
                "state": None if saved is None else _place_in(saved, iterable=settings.iterable),
                "uneven": share.uneven,
                "version": __version__,
                "world_size": share.world_size,
            }
            me = _torch.rank_and_world()
            self._number, self._epochs = next(_agreements), 0
            prefix = f"{self._number}/{ranks[0]}/"  # several groups of ranks may agree at once
            agreed = agree(store, prefix, me[0] if me else 0, ranks, record, SECONDS)
            if unknown:
                seed = seeds.agreed = agreed["drawn"]
        elif unknown and _draws(settings.index_sampler):
            msg = (
                f"shard={settings.shard!r} needs seed= for the same order on all ranks, or "
                "torch.distributed to be set up before the first epoch"
            )
            raise ValueError(msg)
        self._compared = True
        return seed

    def steps(self, settings: Settings, share: Share | None) -> Steps | None:
        """Return the steps that all ranks go in an epoch; after `seed`.

        Args:
            settings: Of the loader.
            share: Of this rank; None where the loader shares nothing out.

        Returns:
            None where each rank goes as many as it has, or they follow from the dataset's length.

        Raises:
            ValueError: Nobody is there to agree with.
        """
        if share is None or share.world_size == 1 or share.uneven == "short":
            return None
        if not settings.iterable:
            return None
        store, ranks = _store_of(settings.shard, share, alone=True)
        if store is None:
            msg = (
                f"uneven={share.uneven!r} needs torch.distributed to be set up with "
                f"{share.world_size} ranks, as the ranks of an iterable dataset agree on when they "
                "end; with uneven='short' each ends when its own share does"
            )
            raise ValueError(msg)
        from threadloader._epoch.steps import Steps  # noqa: PLC0415  # for iterables of ranks only

        prefix = f"{self._number}/{ranks[0]}/epoch {self._epochs}"
        self._epochs += 1
        me = _torch.rank_and_world()
        rank = me[0] if me else 0
        host = _torch.open_rank_store()
        from threadloader._session.ballots import RankBallot  # noqa: PLC0415  # the same

        ballot = RankBallot(store, prefix, rank, ranks, share.uneven, SECONDS, host)
        return Steps(ballot, settings.name, pads=share.uneven == "pad")


def _store_of(shard: Any, share: Share, *, alone: bool = False) -> tuple[Any, Sequence[int]]:
    """Return the store of all ranks that share the data, and their numbers; None for no store.

    Args:
        shard: The argument.
        share: That follows from it.
        alone: Whether nobody else is to use its connection, which who waits has for himself.
    """
    store, me = _torch.open_rank_store(alone=alone), _torch.rank_and_world()
    mesh = getattr(shard, "mesh", None)
    if mesh is not None:
        ranks = mesh.flatten().tolist()
        return store, ranks
    if me is None or me[1] != share.world_size:
        return None, ()
    return store, range(share.world_size)


def _digest_of(generator: Any) -> int | None:
    """Return a number that follows from the state of a generator; None for none."""
    if generator is None:
        return None
    return zlib.crc32(json.dumps(encoded_state(state_of(generator))).encode())


def _place_in(saved: State, *, iterable: bool) -> dict[str, Any]:
    """Return where a state is, as far as it is the same on all ranks."""
    place = {name: saved.get(name) for name in ("epoch", "begun", "shared")}
    if iterable:  # whose shares differ
        return place
    return place | {"batches": [lane["batches"] for lane in saved["lanes"]]}


def _draws(index_sampler: Any) -> bool:
    """Whether the order follows from the process's random state."""
    adapter = known(index_sampler)
    return adapter is not None and adapter.draws and adapter.generator is None


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
        if store.add(f"{prefix}read", 1) == result["came"]:
            store.set(f"{prefix}all read", "")
        elif rank == ranks[0]:  # as a rule the store is in its process, which may end now
            _comes_soon(store, f"{prefix}all read")
    except Warning:  # the user's filter makes an error of it
        raise
    except Exception as error:
        raise RankError(no_answer(error)) from error
    if "error" in result:
        raise RankError(result["error"])
    agreed: Mapping[str, Any] = result["record"]
    return agreed


def _wait(store: Any, prefix: str, rank: int, ranks: Sequence[int], seconds: float) -> None:
    """Wait for the verdict, in a thread: nothing else ends a wait in the store, not even Ctrl-C."""
    ended: SimpleQueue[None] = SimpleQueue()
    waiting = _torch.open_rank_store(alone=True)  # whose process ran a moment ago
    thread = Thread(
        target=_wait_in_store,
        args=(waiting, f"{prefix}verdict", seconds, ended),
        name="tl-ranks",
        daemon=True,
    )
    thread.start()
    try:
        try:
            ended.get(timeout=TELLING_SECONDS)
        except Empty:
            came = _came(store, prefix, ranks)
            if rank == came[0]:  # one of them says so
                missing = named_ranks([rank for rank in ranks if rank not in came])
                warn_user(
                    f"{missing} began no epoch of this loader yet, and others wait for up to "
                    f"{seconds:.0f} s"
                )
            ended.get()
    except BaseException:
        left = f"rank {rank} left while the ranks agreed on what they load: an error, or Ctrl-C"
        with suppress(Exception):  # the store may be gone
            _say(store, prefix, ranks, {"error": left})
        raise
    finally:
        thread.join()


def _wait_in_store(store: Any, key: str, seconds: float, ended: SimpleQueue[None]) -> None:
    _comes_soon(store, key, seconds)
    ended.put(None)


def _comes_soon(store: Any, key: str, seconds: float | None = None) -> None:
    from threadloader._session.ballots import (  # noqa: PLC0415  # for ranks only
        STAYING_SECONDS,
        comes_soon,
    )

    comes_soon(store, key, STAYING_SECONDS if seconds is None else seconds)


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
