"""Where a loader is in its run of epochs: what the next one follows from."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Mapping

    from threadloader._order.known_samplers import KnownOrder
    from threadloader._resume.position import Position
    from threadloader._rng.seeds import EpochDraws, Seeds

__all__ = ["LastEpoch", "RunState", "State"]

State: TypeAlias = "Mapping[str, Any]"  # of a loader, as its `state_dict` returns it


class LastEpoch(NamedTuple):
    """What a state says of the epoch that was begun last.  Nothing here keeps that alive."""

    position: Position
    draws: EpochDraws
    order: KnownOrder | None  # of a known sampler
    dataset: Any  # the state of the user's dataset at the beginning; None if it has none

    def state(self) -> dict[str, Any]:
        """Return the parts of a loader's state that follow from the epoch."""
        state = {"epoch": self.position.epoch, "begun": True, "draws": self.draws.state()}
        order = None if self.order is None else self.order.state()
        if order is not None:
            state["order"] = dict(order)
        return state | self.position.state()


class RunState(NamedTuple):
    """Replaced whole whenever an epoch begins, and put back if that epoch does not come about."""

    seeds: Seeds  # of the next epoch
    loaded: State | None = None  # the next epoch continues from it
    last: LastEpoch | None = None

    @property
    def saved(self) -> State | None:
        """The state that the next epoch continues from; None for none.

        It was loaded, or the last epoch was to continue from it and could not.
        """
        if self.loaded is not None or self.last is None:
            return self.loaded
        position = self.last.position
        return position.saved if position.refused else None

    def advanced(self) -> RunState:
        """Return what the epoch after the next finds; the next one draws its seeds in there."""
        return RunState(self.seeds.copy(), None, self.last)

    def carried_over(self) -> RunState:
        """Return what a forked process, or a copy of the loader, begins with."""
        return self._replace(seeds=self.seeds.copy(), last=None)
