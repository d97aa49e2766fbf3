"""Containers of a user's own, for what a batch keeps of them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple


class Point(NamedTuple):
    x: Any
    y: Any


class Labelled(dict[str, Any]):
    label = "kept"


class Frozen(Mapping[str, Any]):
    """A mapping that cannot be changed, made of a dict."""

    def __init__(self, parts: dict[str, Any]) -> None:
        self.parts = parts

    def __getitem__(self, key: str) -> Any:
        return self.parts[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self.parts)

    def __len__(self) -> int:
        return len(self.parts)


class Unmakable(Frozen):
    """One that cannot be made of a dict."""

    def __init__(self, parts: dict[str, Any], more: None) -> None:
        super().__init__(parts)
        self.more = more
