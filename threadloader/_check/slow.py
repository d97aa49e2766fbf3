"""What is safe in threads, but slow: an import that switches the GIL on, and shared dicts."""

from __future__ import annotations

import platform
from typing import TYPE_CHECKING

from threadloader._check.findings import Finding
from threadloader._fetch.kinds import LARGE
from threadloader._threads.gil_switch import AN_IMPORT, what_switched_the_gil_on
from threadloader._tuning.tuner import gil_is_enabled

if TYPE_CHECKING:
    from collections.abc import Iterator

    from threadloader._check.findings import Line
    from threadloader._check.sharing import Sharing

__all__ = ["gil_finding", "slow_dicts"]


def gil_finding(*, before: bool) -> Finding | None:
    """Return a finding if the GIL is on, on a build that can do without, and nobody asked for it.

    Args:
        before: Whether it was on before samples were loaded.
    """
    switch = what_switched_the_gil_on()
    if switch != AN_IMPORT:
        return None
    when = "the imports of the dataset" if before else "loading samples"
    return Finding("gil-enabled", f"{when} switched the GIL on")


def slow_dicts(sharing: Sharing, line: Line | None) -> Iterator[Finding]:
    """Yield a finding for each large dict that all workers look words up in by ``get``.

    Source: https://github.com/python/cpython/pull/129336 (bench: own_copies)
    """
    if (
        not platform.python_version().startswith("3.13.")
        or gil_is_enabled()
        or "get" not in sharing.names_used
    ):
        return
    for path, value in sharing.dicts:
        if len(value) > LARGE and type(next(iter(value))) is str:
            text = (
                f"{path} has {len(value):,} entries and is shared by all workers: {path}.get(key) "
                "takes 20 us in each thread but the one that made it"
            )
            yield Finding("large-dict", text, line)
