"""What switched the GIL on, on a build that can run without it."""

from __future__ import annotations

import os
import sys
import sysconfig
from functools import cache

from threadloader._threads.tuner import gil_is_enabled
from threadloader.errors import GilWarning, warn_user

AN_IMPORT = "the import of an extension module"


def is_free_threaded() -> bool:
    """Whether this Python can run without a GIL; `gil_is_enabled` says whether it does."""
    return bool(sysconfig.get_config_var("Py_GIL_DISABLED"))


def what_switched_the_gil_on() -> str:
    """Return why the GIL is on, or `AN_IMPORT`; "" if it is off, or if this build always has it."""
    if not is_free_threaded() or not gil_is_enabled():
        return ""
    if os.environ.get("PYTHON_GIL") == "1" and not sys.flags.ignore_environment:
        return "PYTHON_GIL=1"
    if sys._xoptions.get("gil") == "1":  # noqa: SLF001  # documented
        return "-X gil=1"
    return AN_IMPORT


@cache  # once in a process
def warn_of_the_gil() -> None:
    """Warn if an import switched the GIL on, where the user's code called the loader."""
    if what_switched_the_gil_on() != AN_IMPORT:
        return
    msg = (
        f"the GIL was switched on by {AN_IMPORT}, so threads take turns in Python code.  CPython's "
        "RuntimeWarning at that import names it.  Use another version of that package or do "
        "without, or set PYTHON_GIL=0 if it is known to be safe"
    )
    warn_user(msg, GilWarning)
