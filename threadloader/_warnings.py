"""Warnings that name the line of the user's code which asked for a batch, however it is reached."""

from __future__ import annotations

import sys
import warnings

_PACKAGE = __name__.partition(".")[0]


def warn_user(message: str, category: type[Warning] = UserWarning) -> None:
    """Warn of something, in the name of the innermost frame that is not of this package.

    Args:
        message: The text.
        category: Of the warning.
    """
    frame, level = sys._getframe(1), 2  # noqa: SLF001  # as `warnings.warn` itself
    while frame.f_back is not None and _is_ours(frame.f_globals.get("__name__")):
        frame, level = frame.f_back, level + 1
    warnings.warn(message, category, stacklevel=level)


def _is_ours(module: object) -> bool:
    return isinstance(module, str) and module.partition(".")[0] == _PACKAGE
