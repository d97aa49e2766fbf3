"""Numbers on the command line: checked, with an error that says which were expected."""

from __future__ import annotations

import argparse
import math
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["positive", "whole"]


def whole(least: int) -> Callable[[str], int]:
    """Return a type of arguments: whole numbers from ``least`` on."""

    def number(text: str) -> int:
        if not text.isdecimal() or int(text) < least:
            raise argparse.ArgumentTypeError(f"{text!r} is not a whole number from {least}")
        return int(text)

    return number


def positive(text: str) -> float:
    """Return the number that an argument is.

    Raises:
        argparse.ArgumentTypeError: It is none, or not above 0.
    """
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not 0 < number < math.inf:
        raise argparse.ArgumentTypeError(f"{text!r} is not a positive number")
    return number
