"""Many threads load the same samples at once, then in several orders: all must be as expected.

A race that no place of the user's code shows, in a C library say, can only be met by chance.
"""

from __future__ import annotations

import random
import sys
from contextlib import ExitStack
from threading import Barrier
from typing import TYPE_CHECKING, Any

from threadloader._check.findings import Finding
from threadloader._check.loading import WorkerThread

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from threadloader._check.loading import LoadedSample, Loading, Twin

__all__ = ["hammer"]

THREADS = 8
SWITCH_SECONDS = 1e-5  # between two turns of the GIL


def hammer(
    loading: Loading, expected: Mapping[Any, LoadedSample], is_over: Callable[[], bool]
) -> list[Finding]:
    """Load all samples in many threads at once; return what is wrong.

    Args:
        loading: Loads the samples.
        expected: The samples as one thread loads them.
        is_over: Returns whether there is no time left.

    Raises:
        HangError: They did not end.
    """
    begin = Barrier(THREADS)

    def load_all(twin: Twin, thread: int) -> list[Finding]:
        keys = loading.keys
        begin.wait()
        for key in [*keys, *random.Random(thread).sample(keys, len(keys))]:  # noqa: S311  # no secret
            outcome = loading.load(twin, key)
            wrong = outcome.difference(expected[key])
            if wrong is not None:
                when = "when other threads loaded samples at once"
                text = f"index {key!r} came out wrong ({wrong}) {when}"
                return [Finding("mixed-samples", text, outcome.line, key)]
            if is_over():
                break
        return []

    twins = [loading.copy() for _ in range(THREADS)]  # before any thread runs, as `iter` does
    with ExitStack() as stack:
        stack.callback(sys.setswitchinterval, sys.getswitchinterval())
        sys.setswitchinterval(SWITCH_SECONDS)
        workers = [stack.enter_context(WorkerThread(number)) for number in range(THREADS)]
        futures = [
            worker.start(load_all, twin, thread)
            for thread, (worker, twin) in enumerate(zip(workers, twins, strict=True))
        ]
        return [finding for future in futures for finding in loading.result(future)]
