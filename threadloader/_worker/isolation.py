"""The calling thread draws from a stream: as a worker, or as the consumer that works itself.

What is redirected for that is made by `redirect`, at the first call.
"""

from __future__ import annotations

from contextlib import contextmanager, nullcontext
from functools import cache
from typing import TYPE_CHECKING, Any, TypeVar

from threadloader._lifetime import DROPPED, importing, when_dropped
from threadloader._worker.streams import here

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from contextlib import AbstractContextManager
    from types import ModuleType

    from threadloader._worker.streams import WorkerStream


T = TypeVar("T")


@cache
def redirection() -> ModuleType:
    """Return the module `redirect`, imported at the first call.

    Call it before there is a worker that needs it: a child process that is forked while another
    thread imports a module can't import it any more.
    """
    with importing():
        from threadloader._worker import redirect  # noqa: PLC0415  # see there

    return redirect


def redirect_for(stream: WorkerStream) -> Callable[[], object]:
    """Keep the functions redirected as long as ``stream`` lives, or until the result is called.

    For the calling thread, which is a worker again and again, for one batch each time.  To redirect
    the functions takes longer than a small batch.
    """
    hooks, holder = redirection().hooks, object()
    end = when_dropped(stream, hooks.release, holder)
    try:
        hooks.hold(holder)
    except BaseException:  # Ctrl-C: the caller has nothing yet to call
        end()
        raise
    return end


def isolated_here(stream: WorkerStream, function: Callable[..., T], *args: Any) -> T:
    """Call a function in the consumer's thread, which draws from ``stream`` meanwhile.

    Like `isolated`, but see `redirect_for`: the functions are redirected already.

    Args:
        stream: The stream.
        function: The function.
        args: Its arguments.
    """
    # No context manager: Ctrl-C can come up in one before it has restored the streams.
    before = here.stream, here.outer
    try:
        here.stream = here.outer = stream
        operators = redirection().operators
        if operators is None:
            return function(*args)
        redirected: Callable[..., T] = operators.redirected
        return redirected(function, *args)
    finally:
        here.stream, here.outer = before
        stream = before = function = DROPPED
        args = ()  # an error keeps this frame


@contextmanager
def isolated(stream: WorkerStream | None) -> Iterator[None]:
    """Let a worker's thread draw from ``stream``, and from those of its samples.

    Args:
        stream: The worker's stream; None changes nothing.
    """
    if stream is None:
        yield
        return
    before, end = (here.stream, here.outer), redirect_for(stream)
    try:
        here.stream = here.outer = stream
        with redirecting():
            yield
    finally:
        here.stream, here.outer = before
        end()


def redirecting() -> AbstractContextManager[None]:
    """Return a context in which the calling thread's operators of torch draw from its stream."""
    operators = redirection().operators
    return nullcontext() if operators is None else operators.redirecting()
