"""What the first batch of a loader without workers shows: whether threads would give the same.

Such a loader runs the program's code in the program's thread, so its samples may draw from the
program's random state, and change the program's objects.  In threads they would do neither.
"""

from __future__ import annotations

import random
from typing import Any

import numpy as np

from threadloader import _torch
from threadloader._lifetime.dropping import DROPPED
from threadloader._replacement.objects import objects_in, open_file_in

__all__ = ["FirstBatch"]

_OBJECTS = "'s objects, and threads have copies of them"


class FirstBatch:
    """Looks at the batch that one of torch's iterators is about to make.

    Args:
        iterator: torch's own, for no workers.
        arguments: The loader's.
    """

    def __init__(self, iterator: Any, arguments: dict[str, Any]) -> None:
        self._iterator = iterator
        self._fetcher = iterator._dataset_fetcher  # noqa: SLF001  # see the canary test
        self._roots = arguments["dataset"], arguments["collate_fn"]
        self._reason: str | None = None
        iterator._dataset_fetcher = self  # noqa: SLF001

    def fetch(self, index: Any) -> Any:
        """Make the batch; called by torch's iterator, once, after the sampler has drawn."""
        self._iterator._dataset_fetcher = self._fetcher  # noqa: SLF001
        batch = None
        try:
            states, attributes = _random_states(), _attributes(*self._roots)
            batch = self._fetcher.fetch(index)
            self._reason = _drawn(states) or _changed(attributes, *self._roots)
            return batch
        finally:
            self._iterator = DROPPED  # which refers to this
            self = batch = DROPPED

    def reason(self, batch: Any) -> str | None:
        """Return why torch must make the other batches; None if threads may.

        Args:
            batch: What `fetch` returned, perhaps pinned.
        """
        return self._reason or open_file_in(self._roots[0]) or _of_tensors(batch)


def _random_states() -> dict[str, Any]:
    numpy: Any = np.random.get_state(legacy=False)  # noqa: NPY002  # it is what samples draw from
    return {
        "torch": _torch.generator_state(None),
        "random": random.getstate(),
        "numpy.random": _plain_state(numpy),
    }


def _drawn(before: dict[str, Any]) -> str | None:
    for name, state in _random_states().items():
        if state != before[name]:
            return f"its samples draw from {name}, and draw the same numbers only in this thread"
    return None


def _plain_state(state: Any) -> Any:
    """Return a state that can be compared."""
    if isinstance(state, dict):
        return {key: _plain_state(value) for key, value in state.items()}
    return state.tobytes() if isinstance(state, np.ndarray) else state


def _attributes(*roots: Any) -> list[tuple[str, Any, Any]]:
    """Return objects that samples may change, each with its path and what it has now."""
    return [(path, value, _content(value)) for path, value in objects_in(*roots)]


def _content(value: Any) -> Any:
    """Return the values of an object's attributes, or the state of a generator."""
    if isinstance(value, random.Random):
        return value.getstate()
    if isinstance(value, np.random.Generator):
        return _plain_state(value.bit_generator.state)
    if isinstance(value, np.random.RandomState):
        return _plain_state(value.get_state(legacy=False))
    if isinstance(value, _torch.Generator):
        return _torch.generator_state(value)
    cells = getattr(value, "__closure__", None) or ()
    return dict(getattr(value, "__dict__", {})), [_inside(cell) for cell in cells]


def _inside(cell: Any) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # it is empty
        return None


def _changed(before: list[tuple[str, Any, Any]], *roots: Any) -> str | None:
    """Return, as a reason, what the samples have changed."""
    del roots
    for path, value, content in before:
        now = _content(value)
        if not isinstance(content, tuple) or isinstance(value, random.Random):
            if now != content:
                return f"its samples draw from {path}, in an order that threads would not keep"
            continue
        (attributes, cells), (attributes_now, cells_now) = content, now
        for name, part in attributes_now.items():
            if name not in attributes or attributes[name] is not part:
                return f"its samples set {path}.{name}, and threads would set it on copies"
        if len(cells) != len(cells_now) or any(
            old is not new for old, new in zip(cells, cells_now, strict=True)
        ):
            return f"its samples set a variable around {path}, which threads would share"
    return None


def _of_tensors(batch: Any) -> str | None:
    """Return, as a reason, that a batch has tensors that threads do not make."""
    waiting = [batch]
    for _ in range(1000):
        if not waiting:
            break
        value = waiting.pop()
        if isinstance(value, _torch.Tensor):
            if value.device.type != "cpu":
                return f"its samples are on {value.device.type}"
            if value.requires_grad:
                return "its batches carry gradients"
        elif isinstance(value, dict):
            waiting += value.values()
        elif isinstance(value, (list, tuple)):
            waiting += value
    return None
