"""States of torch's and NumPy's generators: taken, written as JSON, and restored."""

from __future__ import annotations

import base64
import zlib
from typing import TYPE_CHECKING, Any

import numpy as np

from threadloader import _torch
from threadloader.errors import StateError

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["encoded_state", "generator_with", "restore_generator", "state_of"]


def state_of(generator: Any) -> bytes | Mapping[str, Any]:
    """Return the state of a generator, in microseconds; not yet as JSON.

    Args:
        generator: A ``torch.Generator`` or ``numpy.random.Generator``; None for torch's random
            state of the process.
    """
    if isinstance(generator, np.random.Generator):
        return generator.bit_generator.state
    return _torch.generator_state(generator)


def encoded_state(state: bytes | Mapping[str, Any]) -> dict[str, Any]:
    """Return a state that `state_of` returned, as JSON; about 4 KB for a generator of torch's."""
    if isinstance(state, bytes):
        return {"torch": base64.b64encode(zlib.compress(state)).decode("ascii")}
    return {"numpy": _plain(state)}


def restore_generator(generator: Any, encoded: Mapping[str, Any]) -> None:
    """Give a generator a state that `encoded_state` returned.

    Raises:
        StateError: The state is that of another library's generator, or of another kind.
    """
    try:
        if isinstance(generator, np.random.Generator):
            generator.bit_generator.state = _arrays(encoded["numpy"])
        else:
            state = zlib.decompress(base64.b64decode(encoded["torch"]))
            _torch.set_generator_state(generator, state)
    except (KeyError, TypeError, ValueError, RuntimeError, zlib.error) as error:
        msg = f"the state holds that of another kind of generator than {generator!r}"
        raise StateError(msg) from error


def generator_with(encoded: Mapping[str, Any]) -> Any:
    """Return a new ``torch.Generator`` that has a state which `encoded_state` returned."""
    generator = _torch.new_generator(0)
    restore_generator(generator, encoded)
    return generator


def _plain(value: Any) -> Any:
    """Return a state of NumPy's with lists in place of arrays."""
    if isinstance(value, dict):
        return {name: _plain(part) for name, part in value.items()}
    if isinstance(value, np.ndarray):
        return {"dtype": value.dtype.name, "values": value.tolist()}
    return value.item() if isinstance(value, np.generic) else value


def _arrays(value: Any) -> Any:
    """Undo `_plain`."""
    if not isinstance(value, dict):
        return value
    if value.keys() == {"dtype", "values"}:
        return np.array(value["values"], dtype=value["dtype"])
    return {name: _arrays(part) for name, part in value.items()}
