"""torch.distributed.checkpoint: a loader's state as one value, which is saved and loaded whole."""

from __future__ import annotations

from typing import Any, Protocol

__all__ = ["WholeState"]


class _Stateful(Protocol):
    def state_dict(self) -> Any: ...

    def load_state_dict(self, state_dict: Any) -> None: ...


class WholeState:
    """A ``Stateful`` whose state is one value, whatever the state of what it wraps is.

    torch.distributed.checkpoint saves each entry of nested dicts by itself, and loads only those
    that the object's state has at that time.  A loader's state has other entries in the middle of
    an epoch than before it.  A tuple is taken as one value.
    Source: ``traverse_state_dict`` in torch/distributed/checkpoint/_traverse.py.

    Args:
        wrapped: A `ThreadLoader`, or any other object with the two methods.
    """

    def __init__(self, wrapped: _Stateful) -> None:
        self.wrapped = wrapped

    def state_dict(self) -> dict[str, Any]:
        """Return the state in a tuple."""
        return {"state": (self.wrapped.state_dict(),)}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Hand on a state that `state_dict` returned.

        Raises:
            StateError: It does not fit the loader.
        """
        (state,) = state_dict["state"]
        self.wrapped.load_state_dict(state)
