"""The ranks that train together: whose share a loader has, and what a sampler shares out by itself.

shard= -> `share_of` -> the `Share` of this rank
a DistributedSampler -> `rank_of` -> its rank, for random numbers of its own
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from threadloader._order.known_samplers import is_known
from threadloader._order.sampler_epoch import within
from threadloader._order.samplers import units_of
from threadloader._ranks.parts import check_askable
from threadloader._ranks.share import Share, rank_and_world

if TYPE_CHECKING:
    from threadloader._settings import Settings

__all__ = ["index_sampler_of", "rank_of", "rank_with_own_streams", "sampled_batches", "share_of"]


def share_of(loader: Any, *, iterable: bool = False) -> Share | None:
    """Return the share of this rank; None where all is loaded here, or the sampler has a share.

    Args:
        loader: A `ThreadLoader`, or its settings.
        iterable: Whether its dataset is iterable, and its sampler a dummy.

    Raises:
        TypeError: An iterable dataset can't be shared out.
        ValueError: A rank is given, and the sampler is that of another one; or the environment
            says something wrong.
    """
    shard = loader.shard
    if shard is None:
        return None
    if shard == "auto":
        rank, world_size = rank_and_world()
    elif isinstance(shard, tuple):
        rank, world_size = shard
    else:
        rank, world_size = shard.get_local_rank(), shard.size()
    if iterable:
        check_askable(loader.dataset)
        return Share(rank, world_size, loader.uneven)
    shared_by = rank_of(index_sampler_of(loader))
    if shared_by is None or shared_by[1] == 1:
        return Share(rank, world_size, loader.uneven)
    if shard != "auto":
        msg = (
            f"shard={shard!r} and a sampler of rank {shared_by[0]} of {shared_by[1]} both share "
            "the data out: give one of them"
        )
        raise ValueError(msg)
    return None


def sampled_batches(loader: Any) -> int:
    """Return how many batches this rank has in an epoch of a map-style dataset.

    Raises:
        TypeError: The sampler has no length.
    """
    index_sampler, share = index_sampler_of(loader), share_of(loader)
    if share is None:
        return len(index_sampler)
    units, size, drop_last = units_of(index_sampler)
    return share.steps(len(units), size, drop_last=drop_last)


def index_sampler_of(loader: Any) -> Any:
    """Return what yields a batch's indices, or single ones: a loader's sampler of either kind."""
    return loader.sampler if loader.batch_sampler is None else loader.batch_sampler


def rank_with_own_streams(settings: Settings, share: Share | None) -> int | None:
    """Return the rank, if samples of other ranks have the same positions; None if they don't.

    So it is with a sampler that shares data out, and with an iterable dataset.

    Args:
        settings: Of the loader.
        share: Of this rank; None where the loader shares nothing out.
    """
    if not settings.iterable:
        shared_by = rank_of(settings.index_sampler)
        return None if shared_by is None else shared_by[0]
    if share is not None:
        return share.rank
    try:
        rank, world_size = rank_and_world()
    except ValueError:  # of the environment, which nobody has asked for
        return None
    return rank if world_size > 1 else None


def rank_of(sampler: Any) -> tuple[int, int] | None:
    """Return the rank that a sampler is for, and the number of ranks; None if it is for all.

    It is told by its attributes: those of torch's ``DistributedSampler``, or of Accelerate's
    ``BatchSamplerShard``.
    """
    if is_known(sampler):
        return None
    for each in within(sampler):
        for names in (("rank", "num_replicas"), ("process_index", "num_processes")):
            rank, world_size = (getattr(each, name, None) for name in names)
            if type(rank) is int and type(world_size) is int:
                return rank, world_size
    return None
