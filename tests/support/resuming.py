"""States of loaders, as a checkpoint would keep them, and what follows from them."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from threadloader import ThreadLoader


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
