"""Containers that all workers share, for what tests record of samples."""

from __future__ import annotations

from collections import Counter
from typing import Self


class _Shared:
    __slots__ = ()

    def __copy__(self) -> Self:
        return self


class SharedList(_Shared, list):  # type: ignore[type-arg]
    pass


class SharedSet(_Shared, set):  # type: ignore[type-arg]
    pass


class SharedCounter(_Shared, Counter):  # type: ignore[type-arg]
    pass
