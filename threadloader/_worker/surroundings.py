"""What the thread of ``iter()`` has of its own, and its workers have, too, as forked ones would.

Context variables (and with them decimal's precision, NumPy's error handling and, since Python 3.14
without a GIL, the filters of a `catch_warnings` block: until then those are the process's), and
torch's modes.
What a library keeps in a `threading.local` is its own: a worker begins without.
"""

from __future__ import annotations

import sys
from contextlib import ExitStack
from contextvars import ContextVar, copy_context
from typing import Any, Self

import numpy as np

from threadloader import _torch

_OLD_NUMPY = np.__version__.startswith("1.")  # before it had a context variable

# What threads inherit of the worker that starts them, where they inherit context: its WorkerInfo,
# and the seed of a pass; see `worker_info`.  Who a worker is itself it does not adopt.
WORKER_INFO: ContextVar[Any] = ContextVar("threadloader.worker_info", default=None)
PASS_SEED: ContextVar[int | None] = ContextVar("threadloader.pass_seed", default=None)
_OF_A_WORKER = {WORKER_INFO, PASS_SEED}


class Surroundings:
    """What the calling thread has of its own.

    Threads:
        adopt: any, several at once.
    """

    def __init__(self) -> None:
        self._variables = copy_context()
        self._modes = _torch.inherited_modes()
        self._errors: tuple[Any, ...] = (np.geterr(), np.geterrcall()) if _OLD_NUMPY else ()

    def adopt(self, life: ExitStack) -> None:
        """Let the calling thread have the same.

        Args:
            life: Is closed when the thread ends.
        """
        for variable, value in self._variables.items():
            if variable not in _OF_A_WORKER:
                variable.set(value)
        decimal = sys.modules.get("decimal")
        if decimal is not None:  # its variable has an object, which threads would share
            decimal.setcontext(decimal.getcontext().copy())
        if self._errors:
            np.seterrcall(self._errors[1])
            np.seterr(**self._errors[0])
        self._modes(life)


class Adopting:
    """Gives a worker's thread the surroundings of the latest epoch.

    Args:
        latest: Has them as its one item; another thread may exchange it.

    Threads:
        all: the worker.
    """

    def __init__(self, latest: list[Surroundings]) -> None:
        self._latest = latest
        self._adopted: Surroundings | None = None
        self._life = ExitStack()

    def __call__(self) -> None:
        """Adopt the latest surroundings, unless that was done."""
        latest = self._latest[0]
        if latest is not self._adopted:
            latest.adopt(self._life)
            self._adopted = latest

    def __enter__(self) -> Self:
        self()
        return self

    def __exit__(self, *error: object) -> None:
        self._life.close()
