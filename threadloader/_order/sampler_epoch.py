"""The number of an epoch in a user's sampler: a ``DistributedSampler``'s order follows from it.

Samplers that share data out between ranks have ``epoch`` and ``set_epoch()``, and each epoch has
the same order if nobody calls that.  The number is the same on all ranks, so a state has it.

Between two epochs, a number that nobody has set since the last one is marked: that shows whether
``set_epoch()`` was called, with whatever number.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from threadloader._order.known_samplers import is_known
from threadloader._resume.stateful import is_stateful
from threadloader._warnings import warn_user

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = [
    "SavedEpoch",
    "epoch_of",
    "mark_untold",
    "next_epoch_of",
    "tell_again",
    "tell_of_epoch",
    "told_epoch",
    "within",
]

_DEEPEST = 4  # samplers within one another


class SavedEpoch(NamedTuple):
    """What a state says of the epoch that the loader begins now."""

    number: int | None  # in the sampler: of the epoch that goes on, or else of the next one
    begun: bool  # whether an epoch goes on
    ended: bool  # whether nothing of it is left, so that the user may have told of the next one


class _Untold(int):
    """A number that nobody has set since; a copy, in the sampler's own state say, is a plain int.

    It belongs to the epoch ``at`` of the loader.
    """

    at = 0

    def __copy__(self) -> int:
        return int(self)

    def __deepcopy__(self, memo: object) -> int:
        return int(self)

    def __reduce__(self) -> tuple[type[int], tuple[int]]:
        return int, (int(self),)


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


def told_epoch(sampler: Any) -> int | None:
    """Return the number of the epoch that the user has told a sampler of; None if nobody did.

    Args:
        sampler: Yields a batch's indices, or single ones.
    """
    counting = _counting(sampler)
    if counting is None or type(counting.epoch) is _Untold:
        return None
    number = int(counting.epoch)
    return number if number or _can_mark(counting) else None  # 0 is what nobody has set


def next_epoch_of(sampler: Any, epoch: int, *, shares_out: bool) -> int | None:
    """Return the number of the epoch that comes next, if nobody tells a sampler of another one.

    Args:
        sampler: Yields a batch's indices, or single ones.
        epoch: The number of that epoch in the loader.
        shares_out: Whether the sampler shares data out, and has another order in each epoch.
    """
    counting = _counting(sampler)
    if counting is None:
        return None
    number = counting.epoch
    if shares_out and type(number) is _Untold and getattr(counting, "shuffle", True):
        return int(number) + max(0, epoch - number.at)  # another loader may be further
    return int(number)


def mark_untold(sampler: Any, epoch: int) -> None:
    """Note that nobody has told a sampler of an epoch, if it has the number of a new one.

    Args:
        sampler: Yields a batch's indices, or single ones.
        epoch: The number of the epoch in the loader.
    """
    counting = _counting(sampler)
    if counting is not None and not counting.epoch:
        _mark(counting, epoch)


def tell_of_epoch(sampler: Any, epoch: int, saved: SavedEpoch | None, *, shares_out: bool) -> None:
    """Tell a sampler of the epoch that begins, or goes on, if the user did not.

    Args:
        sampler: Yields a batch's indices, or single ones.
        epoch: The number of the epoch in the loader.
        saved: What a state says of it; None without a state.
        shares_out: Whether the sampler shares data out, and has another order in each epoch.
    """
    counting = _counting(sampler)
    if counting is None:
        return
    told = told_epoch(sampler)
    if saved is not None and saved.begun:
        _go_on(counting, told, saved)
    elif told is None:
        comes = None if saved is None else saved.number
        if comes is None:
            comes = next_epoch_of(sampler, epoch, shares_out=shares_out)
        _begin(counting, comes, warns=shares_out)
    if shares_out:  # else nobody is to be reminded
        _mark(counting, epoch)


def _go_on(counting: Any, told: int | None, saved: SavedEpoch) -> None:
    if saved.number in {None, counting.epoch}:
        return
    counting.set_epoch(saved.number)
    if told is not None and not saved.ended:
        warn_user(
            f"the {type(counting).__name__} was told of epoch {told}, and its state was saved in "
            f"epoch {saved.number}: the loader calls set_epoch({saved.number}) to load the rest of "
            "that one"
        )


def _begin(counting: Any, comes: int | None, *, warns: bool) -> None:
    if comes == counting.epoch:
        return
    counting.set_epoch(comes)
    if warns:
        warn_user(
            f"set_epoch() of the {type(counting).__name__} was not called after the epoch before, "
            f"so this one would have the order of another: the loader calls set_epoch({comes})"
        )


def tell_again(sampler: Any, told: int) -> None:
    """Tell a sampler of what `told_epoch` returned before another epoch went on.

    Args:
        sampler: Yields a batch's indices, or single ones.
        told: The number.
    """
    _counting(sampler).set_epoch(told)


def _mark(counting: Any, epoch: int) -> None:
    if _can_mark(counting):
        counting.epoch = number = _Untold(counting.epoch)
        number.at = epoch


def _can_mark(counting: Any) -> bool:
    """Whether the number is no property, and not in a state of the sampler's own.

    Users save that by `torch.save`, and `torch.load` refuses numbers of a class of ours.
    """
    if "epoch" not in getattr(counting, "__dict__", ()):
        return False
    return not (is_stateful(counting) and any("epoch" in str(key) for key in counting.state_dict()))


def _counting(sampler: Any) -> Any:
    """Return the sampler, of those within one another, that counts epochs; None for none."""
    if is_known(sampler):
        return None
    for each in within(sampler):
        number = getattr(each, "epoch", None)
        if isinstance(number, int) and callable(getattr(each, "set_epoch", None)):
            return each
    return None
