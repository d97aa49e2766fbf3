"""Loaders and their iterators against lists: any sequence of calls delivers what it should."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from threading import Thread
from typing import Any

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    consumes,
    initialize,
    invariant,
    rule,
)
from support.patience import PATIENCE

from threadloader import ClosedError, ThreadLoader

pytestmark = pytest.mark.usefixtures("slots_for_all_leaves")

SIZE = 12  # samples


class Mixed:
    """Sample ``i`` is ``i`` in two arrays, but some raise and some have a dtype of their own."""

    def __init__(self, broken: frozenset[int], odd: frozenset[int]) -> None:
        self.broken = broken
        self.odd = odd

    def __len__(self) -> int:
        return SIZE

    def __getitem__(self, index: int) -> Any:
        if index in self.broken:
            raise LookupError(index)
        return np.full(4, index, np.float64 if index in self.odd else np.int64), np.full(2, index)


@dataclass(eq=False)
class Pass:
    """An iterator, and what it still has to deliver: a batch's indices, one list each."""

    iterator: Any
    due: list[list[int]]
    over: bool = False  # it has raised StopIteration
    closed: bool = False


@dataclass(eq=False)
class Kept:
    """A view of a batch, and the indices of the samples in it; or an error."""

    view: Any
    indices: list[int]


class Call:
    """A call in a thread of its own, so that one which never returns fails one example."""

    def __init__(self, function: Callable[..., Any], *arguments: Any) -> None:
        self.value: Any = None
        self.error: BaseException | None = None
        thread = Thread(target=self._run, args=(function, arguments), name="test-call", daemon=True)
        thread.start()
        thread.join(PATIENCE)
        assert not thread.is_alive(), f"{function} never returned"

    def _run(self, function: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
        try:
            self.value = function(*arguments)
        except BaseException as error:  # noqa: BLE001  # compared with the model
            self.error = error


class LoaderMachine(RuleBasedStateMachine):
    passes: Bundle[Pass] = Bundle("passes")
    kept: Bundle[Kept] = Bundle("kept")

    @initialize(
        threads=st.integers(0, 3),
        persistent=st.booleans(),
        prefetch=st.none() | st.integers(1, 3),
        batch_size=st.integers(1, 5),
        broken=st.frozensets(st.integers(0, SIZE - 1), max_size=3),
        odd=st.frozensets(st.integers(0, SIZE - 1), max_size=3),
    )
    def make(
        self,
        threads: int,
        persistent: bool,
        prefetch: int | None,
        batch_size: int,
        broken: frozenset[int],
        odd: frozenset[int],
    ) -> None:
        self.broken = broken
        self.batch_size = batch_size
        self.loader: ThreadLoader[Any] = ThreadLoader(
            Mixed(broken, odd),
            batch_size,
            threads=threads,
            persistent_workers=persistent and threads > 0,
            prefetch=prefetch,
            output="numpy",
        )
        self.live: list[Pass] = []
        self.views: list[Kept] = []

    @rule(target=passes)
    def start(self) -> Pass:
        due = [
            list(range(start, min(SIZE, start + self.batch_size)))
            for start in range(0, SIZE, self.batch_size)
        ]
        started = Pass(iter(self.loader), due)
        self.live.append(started)
        return started

    @rule(target=kept, one=passes)
    def keep(self, one: Pass) -> Kept:
        return self.take(one)

    def take(self, one: Pass) -> Kept:
        call = Call(next, one.iterator)
        if one.closed and not one.over:
            assert isinstance(call.error, ClosedError)
            return Kept(call.error, [])
        if not one.due:
            assert isinstance(call.error, StopIteration)
            one.over = True
            return Kept(call.error, [])
        indices = one.due.pop(0)
        blamed = [index for index in indices if index in self.broken]
        if blamed:
            assert isinstance(call.error, LookupError)
            assert call.error.args == (blamed[0],)
            return Kept(call.error, [])
        assert call.error is None
        kept = Kept(call.value[0][:, 1:], indices)
        self.views.append(kept)
        return kept

    @rule(one=passes)
    def exhaust(self, one: Pass) -> None:
        for _ in range(len(one.due) + 1):
            self.let_go(self.take(one))

    @rule(one=consumes(passes))
    def drop(self, one: Pass) -> None:
        self.live.remove(one)
        one.iterator = None

    @rule(one=passes)
    def close_iterator(self, one: Pass) -> None:
        assert Call(one.iterator.close).error is None
        one.closed = True

    @rule()
    def close_loader(self) -> None:
        assert Call(self.loader.close).error is None
        for one in self.live:
            one.closed = True

    @rule()
    def run_an_epoch(self) -> None:
        """And so write over all that is free, as far as the first error."""
        assert (Call(list, self.loader).error is None) == (not self.broken)

    @rule(one=consumes(kept))
    def drop_kept(self, one: Kept) -> None:
        self.let_go(one)

    def let_go(self, one: Kept) -> None:
        if one in self.views:
            self.views.remove(one)
        one.view = None

    @invariant()
    def nothing_that_is_kept_changes(self) -> None:
        for kept in getattr(self, "views", ()):
            np.testing.assert_array_equal(kept.view, np.repeat([kept.indices], 3, axis=0).T)

    def teardown(self) -> None:
        if hasattr(self, "loader"):
            assert Call(self.loader.close).error is None


TestLoader = LoaderMachine.TestCase
TestLoader.settings = settings(max_examples=45, stateful_step_count=25)
