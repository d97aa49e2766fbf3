"""``with`` blocks that set something of the whole process, side by side in several threads.

`warnings.catch_warnings`, `contextlib.redirect_stdout` and the like put back what they found.  In
threads blocks don't end in the order in which they began, so that one puts back what another has
set, for good.  Here each block that ends before a later one leaves what *it* found to that one to
put back: when all have ended, all is as it was before the first.
"""

from __future__ import annotations

import contextlib
import os
import sys
import warnings
from functools import partial, wraps
from threading import RLock
from typing import TYPE_CHECKING, Any

from threadloader._lifetime import in_forked_child

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


class _Blocks:
    """The blocks of one kind that have begun and not ended.

    Args:
        kind: Their class.
        get: Returns what they set.
        put: Sets it.

    Invariants, whenever ``_lock`` is not held:
        1. ``_found`` has what each open block has to put back, in the order in which they began.

    Threads:
        all: shared.
    """

    def __init__(self, kind: Any, get: Callable[[], Any], put: Callable[[Any], None]) -> None:
        # Held while a block begins or ends, which is no code of the user's.  Re-entrant for a
        # finalizer that runs inside.
        self._lock = RLock()
        # All below: guarded by _lock.
        self._found: list[tuple[Any, Any]] = []
        self._get, self._put = get, put
        self._kind, self._before = kind, (kind.__enter__, kind.__exit__)
        self._ours = self._methods(*self._before)
        self.install()
        in_forked_child(self._forget)

    def _forget(self) -> None:
        self._lock, self._found = RLock(), []  # a child has one thread, with blocks of its own

    def install(self, *, ours: bool = True) -> None:
        """Let the blocks be ours, or as they were."""
        self._kind.__enter__, self._kind.__exit__ = self._ours if ours else self._before

    def _methods(self, enter: Any, leave: Any) -> tuple[Any, Any]:
        """Return our methods in the place of others."""

        @wraps(enter)
        def __enter__(block: Any) -> Any:  # noqa: N807
            with self._lock:
                found = self._get()
                result = enter(block)
                self._found.append((block, found))
                return result

        @wraps(leave)
        def __exit__(block: Any, *error: Any) -> Any:  # noqa: N807
            with self._lock:
                now = self._get()
                result = leave(block, *error)
                self._end(block, now)
                return result

        return __enter__, __exit__

    def _end(self, block: Any, now: Any) -> None:
        """Put back what a block found, or leave that to the one that began after it."""
        for place in reversed(range(len(self._found))):
            each, found = self._found[place]
            if each is block:
                del self._found[place]
                if place < len(self._found):
                    self._found[place] = self._found[place][0], found
                    self._put(now)
                else:
                    self._put(found)
                return


_kinds: list[_Blocks] = []


@contextlib.contextmanager
def tangled() -> Iterator[None]:
    """Let blocks leave, inside this context, what they leave without us: for a check."""
    for blocks in _kinds:
        blocks.install(ours=False)
    try:
        yield
    finally:
        for blocks in _kinds:
            blocks.install()


def untangle() -> None:
    """Let blocks in several threads leave what was there before them; call once."""
    if not getattr(sys.flags, "context_aware_warnings", False):  # 3.14t's own remedy
        enter: Any = warnings.catch_warnings.__enter__
        leave: Any = warnings.catch_warnings.__exit__
        _kinds.append(_Blocks(warnings.catch_warnings, partial(_get_warnings, enter, leave), leave))
    for kind, name in (
        (contextlib.redirect_stdout, "stdout"),
        (contextlib.redirect_stderr, "stderr"),
    ):
        _kinds.append(_Blocks(kind, partial(getattr, sys, name), partial(setattr, sys, name)))
    _kinds.append(_Blocks(contextlib.chdir, _get_folder, _put_folder))


def _get_warnings(enter: Any, leave: Any) -> Any:
    """Return a block that has found the settings as they are: leaving it again puts them back."""
    block = warnings.catch_warnings()
    enter(block)
    leave(block)
    return block


def _get_folder() -> str | None:
    try:
        return os.getcwd()  # noqa: PTH109  # as `contextlib.chdir` does
    except OSError:  # it was deleted
        return None


def _put_folder(found: str | None) -> None:
    if found is not None:
        with contextlib.suppress(OSError):
            os.chdir(found)
