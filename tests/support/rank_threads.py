"""Ranks of one training in threads of one process, and a store that they have in common."""

from __future__ import annotations

import threading
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from support.patience import PATIENCE, Spawn
from threadloader import _torch
from threadloader._loader import agreement

__all__ = ["RankThreads", "Store"]


class Store:
    """Stands for a store of torch.distributed."""

    def __init__(self) -> None:
        self.values: dict[str, bytes] = {}
        self._changed = threading.Condition()

    def set(self, key: str, value: str) -> None:
        with self._changed:
            self.values[key] = value.encode()
            self._changed.notify_all()

    def compare_set(self, key: str, expected: str, value: str) -> bytes:
        with self._changed:
            if self.values.get(key, b"") == expected.encode():
                self.set(key, value)
            return self.values[key]

    def get(self, key: str) -> bytes:
        return self.values[key]

    def add(self, key: str, value: int) -> int:
        with self._changed:
            number = int(self.values.get(key, b"0")) + value
            self.values[key] = str(number).encode()
            self._changed.notify_all()
            return number

    def check(self, keys: list[str]) -> bool:
        return all(key in self.values for key in keys)

    def delete_key(self, key: str) -> bool:
        with self._changed:
            return self.values.pop(key, None) is not None

    def wait(self, keys: list[str], timeout: timedelta) -> None:
        with self._changed:
            came = self._changed.wait_for(lambda: self.check(keys), timeout.total_seconds())
        if not came:
            raise RuntimeError(keys)


class RankThreads:
    """Runs a function on each of several ranks, each in a thread.

    Args:
        monkeypatch: The fixture; stands for torch.distributed.
        spawn: The fixture.
        world_size: Ranks.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch, spawn: Spawn, world_size: int) -> None:
        self.store = Store()
        self.world_size = world_size
        self._spawn = spawn
        self._here = threading.local()
        monkeypatch.setattr(_torch, "open_rank_store", lambda: self.store)
        monkeypatch.setattr(_torch, "rank_and_world", self._rank_and_world)
        monkeypatch.setattr(agreement, "_agreements", self)

    def run(self, function: Callable[[int], Any]) -> list[Any]:
        """Return what the function returns on each rank, or the error that it raises."""
        futures = [self._spawn(self._run, function, rank) for rank in range(self.world_size)]
        return [future.exception(PATIENCE) or future.result(PATIENCE) for future in futures]

    def __next__(self) -> int:
        """Return the number of the next agreement of the calling rank."""
        self._here.number = number = getattr(self._here, "number", -1) + 1
        return number

    def _run(self, function: Callable[[int], Any], rank: int) -> Any:
        self._here.rank = rank
        return function(rank)

    def _rank_and_world(self) -> tuple[int, int] | None:
        rank = getattr(self._here, "rank", None)
        return None if rank is None else (rank, self.world_size)
