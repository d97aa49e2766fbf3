"""The thread that calls ``next()``, as the worker that makes batches when they are asked for.

Where the user chose no threads, or left the number to the loader, it loads from the user's own
objects, as torch does in-process.  Where there is a number, it has copies, as any other worker.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from threadloader import _torch
from threadloader._fetch.fetcher import Fetcher, ReadSamples
from threadloader._fetch.own_generators import seeded
from threadloader._lifetime.dropping import DROPPED
from threadloader._rng.isolation import isolated_batch, isolated_here, redirect_for
from threadloader._rng.streams import Current, WorkerStream
from threadloader._threads.worker_info import Introduction
from threadloader._work.copies import Worker, copies_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from threadloader._settings import Settings
    from threadloader._work.stats import Counters
    from threadloader._work.workers import Workers


PLACE = "the calling thread"


class CallingThread:
    """Calls the user's code in the consumer's thread.

    Args:
        settings: Of the loader.
        workers: The other threads; None for none.
        base_seed: Of the workers.
        counters: Of this thread.
        isolates: Whether samples draw from streams of their own.

    Threads:
        call: consumer.
        end: shared.
    """

    def __init__(
        self,
        settings: Settings,
        workers: Workers | None,
        base_seed: int,
        counters: Counters,
        *,
        isolates: bool,
    ) -> None:
        self._settings = settings._replace(sampler=None, batch_sampler=None)
        self._workers = workers
        self._base_seed = base_seed
        self._counters = counters
        self._isolated = isolated_here if settings.iterable else isolated_batch
        # Not at iter(), where threads make all batches.
        self._worker: Worker | None = None
        self._introduction: Introduction | None = None
        # As long as the stream lives, random functions are redirected.
        self._stream: WorkerStream | None = None
        self._isolates = isolates
        self._end: Callable[[], object] = _nothing

    @property
    def worker(self) -> Worker:
        """The worker that the thread is, made at the first call."""
        if self._worker is None:
            self._worker = self._make()
        return self._worker

    def _make(self) -> Worker:
        settings, workers = self._settings, self._workers
        if self._isolates:
            self._stream = WorkerStream(self._base_seed, 0)
            self._end = redirect_for(self._stream)
        if settings.iterable:
            samples = ReadSamples(_torch.unwrapped(settings.dataset), settings.transform)
            return Worker(0, PLACE, self._counters, samples)
        dataset, copied, collate_fn = settings.dataset, None, seeded(settings.collate_fn, None)
        if collate_fn is settings.collate_fn:
            collate_fn = None
        if workers is not None and not workers.is_default:
            own = copies_of(workers.original)
            dataset, copied, collate_fn = own.dataset, own.copied, own.collate_fn
        if workers is not None:  # a worker like others; the only one in the process is none
            rng = Current() if self._isolates else WorkerStream(self._base_seed, 0)
            self._introduction = Introduction(0, workers.num_workers, self._base_seed, dataset, rng)
        fetcher = Fetcher(dataset, whole_batches=settings.whole_batches, copied=copied)
        return Worker(0, PLACE, self._counters, fetcher, copied, collate_fn)

    def call(self, function: Callable[..., Any], *args: Any) -> Any:
        """Call a function with the worker that the thread is, and others arguments."""
        try:
            worker = self.worker
            introduction, isolated = self._introduction, self._isolated
            if introduction is None:
                return isolated(self._stream, function, worker, *args)
            return introduction.call(isolated, self._stream, function, worker, *args)
        finally:
            self = worker = introduction = function = DROPPED  # an error keeps this frame
            args = ()

    def end(self) -> None:
        """Redirect random functions no longer."""
        self._end()


def _nothing() -> None:
    """Do nothing: no functions were redirected."""
