"""What the first sample has loaded into the objects of its worker: the others get it, too.

Users load data on first use (``if self.data is None: self.data = load()``), so that it is not
pickled for worker processes.  Here one worker loads it for all.  What was set in one object belongs
together, as it was set under one condition: all of it is taken over, if there is data among it that
workers share, and each can have its own of the rest; otherwise none, and each worker makes its own.
"""

from __future__ import annotations

import operator
from itertools import islice
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from threadloader import _torch
from threadloader._batch.parts import (
    ATOMS,
    CONTAINERS,
    attributes,
    delete_attribute,
    entries,
    is_same,
    layout_of,
    set_attribute,
    state_of,
)
from threadloader._worker.copy_rules import new_copier
from threadloader._worker.handles import IN_TURN, SHARED, handle_rule
from threadloader._worker.own_copy import Copied, Limits

if TYPE_CHECKING:
    from collections.abc import Iterator


class Learnt(NamedTuple):
    """What a first sample has done."""

    loads: bool = False  # whether it has loaded data that all workers share
    opened: tuple[str, ...] = ()  # the names of what each worker has to open for itself
    opens_handles: bool = False  # whether there is among it what one thread at a time may use
    opens_once: bool = False  # whether it has opened what a process must not open twice
    copied: Copied | None = None  # keeps what was taken over, as long as the originals are kept


def learn(own: Copied, limits: Limits) -> Learnt:
    """Give the originals what has been loaded into their copies.

    Args:
        own: The copies of the worker that has run the first sample.
        limits: See `Copier`.
    """
    back = Copied()
    back.update((id(twin), (twin, original)) for original, twin in own.values())
    loads, once, opened, handles = False, False, [], False
    for original, twin in list(own.values()):
        if original is twin or not _holds_names(twin) or _is_handle(twin):
            continue
        given, found = state_of(original), state_of(twin)
        if len(given) == len(found) and all(map(operator.is_, given, found)):
            continue
        before = {name: _twin_of(part, own) for name, part in _named(original)}
        now = dict(_named(twin))
        new = {
            n: part for n, part in now.items() if n not in before or not is_same(part, before[n])
        }
        if not new:
            continue
        size, back.shares_data = len(back), False
        parts = SimpleNamespace(**{str(number): part for number, part in enumerate(new.values())})
        twins = vars(new_copier(back, limits=limits).copy("", parts)).values()
        once |= any(handle_rule(type(part)) is SHARED for part in new.values())
        copied = [value for value, _ in islice(reversed(back.values()), len(back) - size)]
        # The worker that has opened such a file would not take turns with the others.
        in_turn = any(handle_rule(type(value)) is IN_TURN for value in copied)
        if back.shares_data and not (back.shared or in_turn):
            loads = True
            _set_all(original, dict(zip(new, twins, strict=True)), before.keys() - now.keys())
        else:
            handles |= bool(back.shared) or any(map(_is_handle, copied))
            back.forget_from(size)
            opened += [str(name) for name, part in new.items() if not _is_plain(part)]
    return Learnt(loads, tuple(opened), handles, once, back)


def _is_handle(value: Any) -> bool:
    return handle_rule(type(value)) not in (None, SHARED)


def _holds_names(value: Any) -> bool:
    kind = type(value)
    return kind is dict or kind is list or not layout_of(kind).hides_memory


def _named(value: Any) -> Iterator[tuple[Any, Any]]:
    """Yield what an object, a dict or a list holds, with the names."""
    if type(value) is list:
        yield from enumerate(entries(value))
    elif type(value) is dict:
        yield from ((key, part) for key, part in entries(value) if type(key) in ATOMS)
    else:
        yield from attributes(value)


def _twin_of(part: Any, own: Copied) -> Any:
    found = own.get(id(part))
    return part if found is None else found[1]


def _is_plain(part: Any) -> bool:
    """Whether a part is what samples make anew, and not something that was opened."""
    plain = type(part) in ATOMS or isinstance(part, (*CONTAINERS, np.generic))
    return plain or isinstance(part, (np.ndarray, _torch.Tensor))


def _set_all(original: Any, new: dict[Any, Any], gone: set[Any]) -> None:
    kind = type(original)
    for name, part in new.items():
        if kind is list:
            original[name : name + 1] = [part]
        elif kind is dict:
            original[name] = part
        else:
            set_attribute(original, name, part)
    if kind is list:
        del original[len(original) - len(gone) :]
    elif kind is dict:
        for name in gone:
            original.pop(name, None)
    else:
        for name in gone:
            delete_attribute(original, name)
