"""What the ranks of a loader have agreed on: its seed, and how many steps an epoch has."""

from __future__ import annotations

import itertools
import json
import zlib
from typing import TYPE_CHECKING, Any

from threadloader import _torch
from threadloader._loader.state import fingerprint_of
from threadloader._order.agreeing import agree
from threadloader._order.samplers import known
from threadloader._order.seeds import draw_seed, encoded_state, state_of
from threadloader._order.votes import Votes
from threadloader._version import __version__
from threadloader.errors import StateError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from threadloader._engine.settings import Settings
    from threadloader._loader.state import State
    from threadloader._order.seeds import Seeds
    from threadloader._order.share import Share


SECONDS = 600.0  # to wait for other ranks: one may prepare the data while others wait

_agreements = itertools.count()


class Agreement:
    """What the ranks of one loader have agreed on.

    Threads:
        all: planner only.
    """

    def __init__(self) -> None:
        self.share: Any = None  # of this rank, one of several; set before each epoch
        self._compared = False  # whether this rank is known to load what the others load
        self._number = 0  # of the latest comparison
        self._epochs = 0  # that ranks have voted on since then

    def seed(
        self, settings: Settings, seeds: Seeds, saved: State | None, seed: int | None
    ) -> int | None:
        """Return the seed of a run: the one that is known, or one that the ranks agree on now.

        Args:
            settings: Of the loader.
            seeds: Of the epoch; are told what was agreed.
            saved: The state to continue from; None for the beginning.
            seed: The user's, or the one that was agreed on before; None for neither.

        Returns:
            None where a generator or the process's random state draws.

        Raises:
            RankError: The ranks differ.
            StateError: The state does not say how ranks draw.
            ValueError: Nothing can make the ranks' orders equal.
        """
        share = self.share
        unknown = seed is None and settings.generator is None
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
                **fingerprint_of(settings),
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
            self._number, self._epochs = next(_agreements), 0
            prefix = f"{self._number}/{ranks[0]}/"  # several groups of ranks may agree at once
            agreed = agree(store, prefix, _rank(), ranks, record, SECONDS)
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

    def votes(self, settings: Settings) -> Votes | None:
        """Return the votes on how many steps all ranks go in an epoch; after `seed`.

        Args:
            settings: Of the loader.

        Returns:
            None where each rank goes as many as it has, or they follow from the dataset's length.

        Raises:
            ValueError: Nobody is there to agree with.
        """
        share = self.share
        if share.uneven == "short" or not settings.iterable:
            return None
        store, ranks = _store_of(settings.shard, share)
        if store is None:
            msg = (
                f"uneven={share.uneven!r} needs torch.distributed to be set up with "
                f"{share.world_size} ranks, as the ranks of an iterable dataset agree on when they "
                "end; with uneven='short' each ends when its own share does"
            )
            raise ValueError(msg)
        prefix = f"{self._number}/{ranks[0]}/epoch {self._epochs}"
        self._epochs += 1
        return Votes(store, prefix, _rank(), ranks, share.uneven, SECONDS)


def _rank() -> int:
    return (_torch.rank_and_world() or (0,))[0]


def _store_of(shard: Any, share: Share) -> tuple[Any, Sequence[int]]:
    """Return the store of all ranks that share the data, and their numbers; None for no store.

    Args:
        shard: The argument.
        share: That follows from it.
    """
    store, me = _torch.open_rank_store(), _torch.rank_and_world()
    mesh = getattr(shard, "mesh", None)
    if mesh is not None:
        return store, mesh.flatten().tolist()
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
