"""Samplers and ranks: whose share a loader has, and the epoch that a sampler is in.

    shard= -> `share_of` -> the `Share` of this rank
    a ``DistributedSampler`` -> `rank_of` -> its rank, for random numbers of its own

Samplers that share data out between ranks have ``epoch`` and ``set_epoch()``, and each epoch has
the same order if nobody calls that.  The number is the same on all ranks, so a state has it.

A loader calls ``set_epoch()`` to go on with a saved epoch.  Otherwise that is the user's, as with
torch's loader; who forgets it is told.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from threadloader._order.samplers import is_known, units_of
from threadloader._order.share import Share, check_askable, rank_and_world
from threadloader.errors import warn_user

if TYPE_CHECKING:
    from collections.abc import Iterator


def share_of(settings: Any) -> Share | None:
    """Return the share of this rank; None where all is loaded here, or the sampler has a share.

    Args:
        settings: Of the loader.

    Raises:
        TypeError: An iterable dataset can't be shared out.
        ValueError: A rank is given, and the sampler is that of another one; or the environment
            says something wrong.
    """
    shard = settings.shard
    if shard is None:
        return None
    if shard == "auto":
        rank, world_size = rank_and_world()
    elif isinstance(shard, tuple):
        rank, world_size = shard
    else:
        rank, world_size = shard.get_local_rank(), shard.size()
    if settings.iterable:
        check_askable(settings.dataset)
        return Share(rank, world_size, settings.uneven)
    shared_by = rank_of(settings.index_sampler)
    if shared_by is None or shared_by[1] == 1:
        return Share(rank, world_size, settings.uneven)
    if shard != "auto":
        msg = (
            f"shard={shard!r} and a sampler of rank {shared_by[0]} of {shared_by[1]} both share "
            "the data out: give one of them"
        )
        raise ValueError(msg)
    return None


def sampled_batches(settings: Any) -> int:
    """Return how many batches this rank has in an epoch of a map-style dataset.

    Raises:
        TypeError: The sampler has no length.
    """
    index_sampler, share = settings.index_sampler, share_of(settings)
    if share is None:
        return len(index_sampler)
    units, size, drop_last = units_of(index_sampler)
    return share.steps(len(units), size, drop_last=drop_last)


def rank_with_own_streams(settings: Any, share: Share | None) -> int | None:
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


_DEEPEST = 4  # samplers within one another


def within(sampler: Any) -> Iterator[Any]:
    """Yield a sampler, and those within it."""
    for _ in range(_DEEPEST):
        if sampler is None:
            return
        yield sampler
        inner = getattr(sampler, "batch_sampler", None)
        sampler = getattr(sampler, "sampler", None) if inner is None else inner


def epoch_of(sampler: Any) -> int | None:
    """Return the number of the epoch that a sampler is in; None if it has no ``set_epoch()``.

    Args:
        sampler: Yields a batch's indices, or single ones.
    """
    counting = _counting(sampler)
    return None if counting is None else int(counting.epoch)


def told_epoch(sampler: Any, seen: int | None) -> int | None:
    """Return the number of the epoch that the user has told a sampler of; None if nobody did.

    Args:
        sampler: Yields a batch's indices, or single ones.
        seen: The number when the loader began its last epoch; None if it began none.
    """
    number = epoch_of(sampler)
    return None if number == (seen or 0) else number


def tell_of_epoch(
    sampler: Any, seen: int | None, number: int | None, *, begun: bool, ended: bool
) -> None:
    """Tell a sampler of the epoch that goes on, or of the next one after a saved one.

    Args:
        sampler: Yields a batch's indices, or single ones.
        seen: As of `told_epoch`.
        number: In a saved state: of the epoch that goes on, or else of the next one.
        begun: Whether an epoch goes on.
        ended: Whether nothing of it is left, so that the user may have told of the next one.
    """
    counting = _counting(sampler)
    if counting is None or number in {None, counting.epoch}:
        return
    told = told_epoch(sampler, seen)
    if told is not None and not begun:
        return
    counting.set_epoch(number)
    if told is not None and not ended:
        warn_user(
            f"{type(counting).__name__}.set_epoch({told}) was called, and its state was saved in "
            f"epoch {number}: the loader calls set_epoch({number}) to load the rest of that epoch"
        )


def warn_of_same_order(sampler: Any, seen: int | None) -> None:
    """Warn if the epoch that begins has the order of the one before, which was read to its end.

    So it may be where a sampler shares data out between ranks.

    Args:
        sampler: Yields a batch's indices, or single ones.
        seen: As of `told_epoch`.
    """
    counting = _counting(sampler)
    if seen is None or counting is None or not getattr(counting, "shuffle", True):
        return
    if counting.epoch == seen and rank_of(sampler) is not None:
        name = type(counting).__name__
        warn_user(
            f"set_epoch() of the {name} was not called since the last epoch, or with the same "
            "number, so this one has the same order: call set_epoch(epoch) before each epoch"
        )


def tell_again(sampler: Any, told: int) -> None:
    """Tell a sampler of what `told_epoch` returned before another epoch went on.

    Args:
        sampler: Yields a batch's indices, or single ones.
        told: The number.
    """
    _counting(sampler).set_epoch(told)


def _counting(sampler: Any) -> Any:
    """Return the sampler, of those within one another, that counts epochs; None for none."""
    if is_known(sampler):
        return None
    for each in within(sampler):
        number = getattr(each, "epoch", None)
        if isinstance(number, int) and callable(getattr(each, "set_epoch", None)):
            return each
    return None
