"""The only folder that imports torch; without torch the same names stand for its absence.

`AVAILABLE` says whether torch is there.  All other names mean the same either way: where torch is
missing, `Tensor` is a type that no object has, so that nobody calls the functions for tensors.

A name is listed twice: in ``__all__`` of the module that calls torch, and of `absent`.  mypy
compares the two objects, and a test the lists.
"""

from __future__ import annotations

import importlib.util

AVAILABLE = importlib.util.find_spec("torch") is not None

if AVAILABLE:
    from threadloader._torch.accelerators import *
    from threadloader._torch.collation import *
    from threadloader._torch.datasets import *
    from threadloader._torch.pinning import *
    from threadloader._torch.random_state import *
    from threadloader._torch.sampling import *
    from threadloader._torch.sharding import *
    from threadloader._torch.threads import *
    from threadloader._torch.worker_info import *
else:
    from threadloader._torch.absent import *
    from threadloader._torch.absent_types import *  # type: ignore[assignment]  # other classes
