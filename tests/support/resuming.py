"""States of loaders, as a checkpoint would keep them, and what follows from them."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import numpy as np

from threadloader import ThreadLoader


class Cursor:
    """An iterator over a list whose state is its place."""

    def __init__(self, items: list[Any]) -> None:
        self.items, self.at = items, 0

    def __iter__(self) -> Cursor:
        return self

    def __next__(self) -> Any:
        if self.at == len(self.items):
            raise StopIteration
        self.at += 1
        return self.items[self.at - 1]

    def state_dict(self) -> dict[str, int]:
        return {"at": self.at}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.at = state["at"]


def as_json(state: Any) -> Any:
    """Return a state that was written and read."""
    return json.loads(json.dumps(state))


def state_after(loader: ThreadLoader[Any], batches: int) -> Any:
    """Return the state after so many batches of the first epoch."""
    with loader:
        iterator = iter(loader)
        for _ in range(batches):
            next(iterator)
        return as_json(loader.state_dict())


def after(loader: ThreadLoader[Any], state: Any, epochs: int = 1) -> list[Any]:
    """Return the batches of each epoch that follows a state."""
    with loader:
        loader.load_state_dict(state)
        return [list(loader) for _ in range(epochs)]


def plain(batch: Any) -> Any:
    """Return a batch that can be compared."""
    return batch.tolist() if isinstance(batch, np.ndarray) else batch


def told(loader: ThreadLoader[Any], epochs: int = 2) -> tuple[list[Any], list[Any]]:
    """Return the batches of each epoch, and ``(epoch, batches delivered, state)`` all along."""
    batches: list[Any] = []
    states: list[Any] = []
    with loader:
        states.append((0, 0, as_json(loader.state_dict())))
        for epoch in range(epochs):
            batches.append([])
            iterator = iter(loader)
            states.append((epoch, 0, as_json(loader.state_dict())))
            for batch in iterator:
                batches[-1].append(plain(batch))
                states.append((epoch, len(batches[-1]), as_json(loader.state_dict())))
            states.append((epoch + 1, 0, as_json(loader.state_dict())))
    return batches, states


def check_each_state(
    saving: Callable[[], ThreadLoader[Any]],
    resuming: Callable[[], ThreadLoader[Any]] | None = None,
    decided: Callable[[Any], int] | None = None,
) -> None:
    """Resume from each state of two epochs, and compare that with what followed it.

    Args:
        saving: Makes the loader that is saved.
        resuming: Makes one that goes on; None for the same.
        decided: Returns how many epochs a state decides; None where that is all.
    """
    batches, states = told(saving())
    wrong = []
    for epoch, delivered, state in states:
        rest = [batches[epoch][delivered:], *batches[epoch + 1 :]] if epoch < len(batches) else []
        rest = rest if decided is None else rest[: decided(state)]
        got = after((resuming or saving)(), state, len(rest)) if rest else []
        if [list(map(plain, epoch)) for epoch in got] != rest:
            wrong.append((epoch, delivered))
    assert not wrong
