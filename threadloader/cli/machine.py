"""What this process runs on: the Python build, its GIL and the cores it may use."""

from __future__ import annotations

import platform
import sysconfig

from threadloader._tuning.tuner import gil_is_enabled

__all__ = ["gil_is_enabled", "is_free_threaded", "python_build"]


def is_free_threaded() -> bool:
    """Whether this Python can run without a GIL; `gil_is_enabled` says whether it does."""
    return bool(sysconfig.get_config_var("Py_GIL_DISABLED"))


def python_build() -> str:
    """Name the build and the state of its GIL, for people."""
    name = f"{platform.python_implementation()} {platform.python_version()}"
    if not is_free_threaded():
        return f"{name}, GIL on"
    if gil_is_enabled():
        return f"{name} free-threaded, but GIL on (by PYTHON_GIL, -X gil or an extension)"
    return f"{name} free-threaded, GIL off"
