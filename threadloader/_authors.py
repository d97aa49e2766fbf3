"""For authors of datasets: who reads, which part of a stream, and passes that have a state.

`datasets` uses nothing else of the loader.  For datasets of your own `sample_rng`, `sample_seed`,
`get_worker_info` and `PerThread` are public.
"""

from __future__ import annotations

from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

from threadloader._lifetime import DROPPED
from threadloader._order import resume
from threadloader._order.permutation import KeyedPermutation
from threadloader._order.seeds import epoch_seed
from threadloader._order.share import (
    Part,
    asked,
    check_askable,
    is_askable,
    rank_and_world,
)
from threadloader._threads.machine import free_memory
from threadloader._threads.per_thread import PerThread
from threadloader._threads.waiting import Stop, stops_here, wait
from threadloader._torch import Dataset, IterableDataset, gives_whole_batches
from threadloader._worker.isolation import redirecting
from threadloader._worker.streams import here
from threadloader._worker.worker_info import get_worker_info, in_part, in_pass
from threadloader._worker.worker_info import pass_seed_here as pass_seed

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping


__all__ = [
    "DROPPED",
    "Dataset",
    "IterableDataset",
    "KeyedPermutation",
    "Part",
    "PerThread",
    "SourcePass",
    "Stop",
    "asked",
    "check_askable",
    "drawing_nothing",
    "free_memory",
    "get_worker_info",
    "gives_whole_batches",
    "is_askable",
    "part_here",
    "pass_seed",
    "rank_and_world",
    "states_between",
    "stops_here",
    "wait",
]


def part_here() -> Part:
    """Return the part of a stream that the calling thread reads: that of a worker of a rank.

    Raises:
        ValueError: The environment's ranks are none.
    """
    info: Any = get_worker_info()
    worker, workers = (0, 1) if info is None else (info.id, info.num_workers)
    return Part.of(*rank_and_world(), worker, workers, 0)


class SourcePass:
    """A pass over an iterable of the user's, or over one part of it, with a state.

    Args:
        role: Of the iterable, for errors.
        source: The iterable; a worker's own copy.
        part: Which part it is asked for, if it can be asked; None for all of it.
        passes: Passes over the same part before, within a pass of the loader: each has another
            `pass_seed`.
        states: As `states` returned them; none for the beginning.
        ended: Whether they are those of the end of a pass: this one is the next.
        broken_off: Gets by role what brings a source back to its beginning, as long as a pass of it
            that was restored has not ended.  None: its own next pass is not this one's business.

    Threads:
        all: one thread, the worker that owns it.
    """

    def __init__(
        self,
        role: str,
        source: Any,
        *,
        part: Part | None = None,
        passes: int = 0,
        states: Mapping[str, Any] | None = None,
        ended: bool = False,
        broken_off: dict[str, Callable[[], None]] | None = None,
    ) -> None:
        self._role, self._source = role, source
        self._broken_off = broken_off
        self._within: Callable[..., Any] = _called
        seed = pass_seed()
        if passes and seed is not None:
            seed = epoch_seed(seed, passes)
            self._within = partial(in_pass, seed)
        if part is not None and is_askable(source):
            given = self._within(asked, source, part)
            if given is not None:
                self._source, self._within = given, partial(in_part, seed)
        self._within(self._begin, states or {}, ended)

    def _begin(self, states: Mapping[str, Any], ended: bool) -> None:
        role, source = self._role, self._source
        self._fresh: Any = None  # the state from before another one was restored
        if ended:
            resume.restore_after(source, states)
            states = {}
        elif "dataset" in states and self._broken_off is not None and resume.is_stateful(source):
            self._fresh = fresh = resume.fresh_state(source)
            if fresh is not None:
                self._broken_off[role] = lambda: resume.restore_between(role, source, fresh)
        self._iterator = resume.begin(role, source, states)

    def __iter__(self) -> SourcePass:
        return self

    def __next__(self) -> Any:
        """Return the next sample; an error is the source's own, and the pass goes on after it."""
        return self._within(next, self._iterator)

    def states(self) -> dict[str, Any]:
        """Return the states of the source and of its iterator, by role; empty if they have none."""
        return resume.states_of("dataset", self._source, self._iterator)

    def end(self) -> None:
        """Let the next pass over the source be whole, after this one gave all."""
        if self._broken_off is not None and self._fresh is not None:
            self._broken_off.pop(self._role, None)
            resume.restore_whole(
                self._role, self._source, resume.snapshot(self._source), self._fresh
            )


def _called(function: Callable[..., Any], *args: Any) -> Any:
    return function(*args)


def states_between(source: Any) -> dict[str, Any]:
    """Return what `SourcePass.states` would after a pass that ended, while there was none yet."""
    state = resume.snapshot_between(source) if resume.is_stateful(source) else None
    return {} if state is None else {"dataset": state}


@contextmanager
def drawing_nothing(refused: Callable[[], Exception]) -> Iterator[None]:
    """Let a sample draw no random numbers inside this context, if a worker loads it.

    Args:
        refused: Makes the error.

    Raises:
        Exception: It drew, and went on after the error, or did not.
    """
    stream = here.stream
    if stream is None:  # not in a loader: draws are nobody's business there
        yield
        return
    refusing: Any = _NoDraws(refused)
    here.stream = refusing
    try:
        # The calling thread of a loader may draw from torch's default generator.
        with redirecting():
            yield
    finally:
        here.stream = stream
    if refusing.drawn:
        raise refused()


class _NoDraws:
    """In the place of the stream of a sample that may draw nothing.

    Args:
        refused: Makes the error.

    Threads:
        all: one thread.
    """

    def __init__(self, refused: Callable[[], Exception]) -> None:
        self._refused = refused
        self.drawn = False

    def __getattr__(self, _: str) -> Any:
        self.drawn = True
        raise self._refused()
