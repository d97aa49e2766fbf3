"""The states of all that an order is drawn from: generators, and a sampler's epoch."""

from __future__ import annotations

import random
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from threadloader import _torch
from threadloader._order.ranks import epoch_of, tell_again
from threadloader._order.samplers import known
from threadloader._rng.seeds import encoded_state, restore_generator, state_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from threadloader._settings import Settings


class _State(NamedTuple):
    owner: str
    restore: Callable[[Any], object]
    state: Any
    comparable: Any
    is_users: bool = True  # not of the process


class OrderStates:
    """The states at one moment.

    Args:
        settings: Of a loader; its generator's is noted, and its sampler's.

    Attributes:
        states: They, each with what tells it from another.
    """

    def __init__(self, settings: Settings) -> None:
        sampler = settings.index_sampler
        own = None if settings.iterable else known(sampler)
        default, number = _torch.default_generator(), epoch_of(sampler)
        mine, legacy = random.getstate(), np.random.get_state(legacy=False)  # noqa: NPY002  # the user's draw so
        self.states = [
            _State("random", random.setstate, mine, mine, is_users=False),
            _State("numpy.random", np.random.set_state, legacy, encoded_state(legacy), False),
        ]
        for each in (settings.generator, own and own.generator, default):
            if each is not None:
                state, restore = state_of(each), partial(_restore, each)
                # To encode bytes takes as long as all else here.
                comparable = state if isinstance(state, bytes) else encoded_state(state)
                is_users = each is not default
                owner = "the generator" if is_users else "torch's random state"
                self.states.append(_State(owner, restore, state, comparable, is_users))
        if number is not None:
            tell = partial(tell_again, sampler)
            self.states.append(_State("the sampler's epoch", tell, number, number))

    def restore(self, before: OrderStates | None = None) -> None:
        """Let all be as it was then; or only what had another state ``before``.  Idempotent."""
        for number, each in enumerate(self.states):
            if before is None or before.states[number].comparable != each.comparable:
                each.restore(each.state)

    def changed(self, now: OrderStates, begun: OrderStates) -> tuple[str, bool] | None:
        """Return whose state is another now, so that something else is drawn; None for nobody's.

        Args:
            now: The states now.
            begun: Those behind the draws; the process's that are others then were drawn from.

        Returns:
            The owner, and whether that is of the process, not the user's.
        """
        for one, other, after in zip(self.states, now.states, begun.states, strict=False):
            decides = one.is_users or one.comparable != after.comparable
            if decides and one.comparable != other.comparable:
                return one.owner, not one.is_users
        return None


def _restore(generator: Any, state: Any) -> None:
    restore_generator(generator, encoded_state(state))
