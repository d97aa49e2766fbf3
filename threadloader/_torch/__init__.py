"""The only folder that imports torch; without torch the same names stand for its absence.

`AVAILABLE` says whether torch is there.  All other names mean the same either way: where torch is
missing, `Tensor` is a type that no object has, so that nobody calls the functions for tensors.

Each name is in ``__all__`` of the module that calls torch, and in `absent`, as a test checks.

The module for accelerators is imported when one of its names is first used (PEP 562): a loader
without ``device`` and ``pin_memory`` needs none.
"""

from __future__ import annotations

import importlib.util
from typing import TYPE_CHECKING, Any

AVAILABLE = importlib.util.find_spec("torch") is not None

if AVAILABLE:
    from threadloader._torch.data import *
    from threadloader._torch.random_state import *
    from threadloader._torch.threads import *

    if TYPE_CHECKING:
        from threadloader._torch.accelerators import *
else:
    from threadloader._torch.absent import *  # type: ignore[assignment]  # other classes

_OF_ACCELERATORS = frozenset({"can_pin", "empty_pinned", "open_device", "pinned"})


def __getattr__(name: str) -> Any:
    if name in _OF_ACCELERATORS and AVAILABLE:
        from threadloader._torch import accelerators

        return getattr(accelerators, name)
    msg = f"module {__name__!r} has no attribute {name!r}"
    raise AttributeError(msg)
