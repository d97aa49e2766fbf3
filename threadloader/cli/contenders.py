"""The loaders that a race times: a bare loop, torch's DataLoader, ThreadLoader."""

from __future__ import annotations

import os
import signal
import sys
import time
import traceback
import warnings
from contextlib import contextmanager
from itertools import islice
from multiprocessing import Value
from multiprocessing.util import Finalize
from typing import TYPE_CHECKING, Any

import numpy as np

from threadloader.loader import ThreadLoader

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator

    from threadloader.cli.race import TimedSampler

__all__ = ["BareLoop", "Processes", "Threads"]


class BareLoop:
    """Load each sample in the calling thread, and collate them there.

    Args:
        collate_fn: Makes a batch of a list of samples; None stacks images and their labels with
            NumPy.
    """

    name = "bare loop"
    turn = 1
    foreign = False

    def __init__(self, collate_fn: Callable[[Any], Any] | None = None) -> None:
        self._collate = _stacked if collate_fn is None else collate_fn

    def batches(self, dataset: Any, sampler: TimedSampler) -> Generator[object, None, None]:
        """Load batches one after the other."""
        indices = iter(sampler)
        while batch := list(islice(indices, sampler.batch_size)):
            yield self._collate([dataset[index] for index in batch])

    def child_seconds(self) -> float:
        """Return 0: there are no child processes."""
        return 0.0


class Threads:
    """Load with `ThreadLoader`.

    Args:
        threads: Worker threads; 0 loads in the calling thread, None is the default.
        collate_fn: Makes a batch of a list of samples; None for the default.
    """

    turn = 1  # all threads work on one batch
    foreign = False

    def __init__(self, threads: int | None, collate_fn: Callable[[Any], Any] | None = None) -> None:
        self.threads = threads
        self.chosen: list[tuple[int, int]] = []  # threads of each round, and those that ran at once
        self._collate_fn = collate_fn
        words = "its default" if threads is None else _count(threads, "thread")
        self.name = f"ThreadLoader, {words}"

    def batches(self, dataset: Any, sampler: TimedSampler) -> Generator[object, None, None]:
        """Make a loader, iterate over it, close it."""
        loader: ThreadLoader[object] = ThreadLoader(
            dataset,
            batch_size=sampler.batch_size,
            sampler=sampler,
            threads=self.threads,
            collate_fn=self._collate_fn,
        )
        with loader:
            yield from loader
            statistics = loader.statistics()
            self.chosen.append((statistics.workers, statistics.running))

    def child_seconds(self) -> float:
        """Return 0: there are no child processes."""
        return 0.0


class Processes:
    """Load with ``torch.utils.data.DataLoader``, its other arguments left at their defaults.

    Args:
        workers: Worker processes; 0 loads in the calling thread.
        collate_fn: Makes a batch of a list of samples; None for the default.
    """

    foreign = True

    def __init__(self, workers: int, collate_fn: Callable[[Any], Any] | None = None) -> None:
        from threadloader._torch import DataLoader

        self._loader = DataLoader
        self._collate_fn = collate_fn
        self._cpu = _ChildClock()
        self.workers = workers
        self.turn = max(1, workers)
        self.name = f"torch DataLoader, {_count(workers, 'worker')}"

    def batches(self, dataset: Any, sampler: TimedSampler) -> Generator[object, None, None]:
        """Make a loader, iterate over it; its workers end with the iterator."""
        loader: Any = self._loader(
            dataset,
            batch_size=sampler.batch_size,
            sampler=sampler,
            num_workers=self.workers,
            worker_init_fn=self._cpu,
            collate_fn=self._collate_fn,
        )
        with _interrupts_held():
            iterator = iter(loader)
        try:
            yield from iterator
        except BaseException as end:  # Ctrl-C, as a rule
            traceback.clear_frames(end.__traceback__)  # they hold the iterator too
            with _failures_unheard():
                del iterator
            raise

    def child_seconds(self) -> float:
        """Return the CPU time of the workers that have ended, in seconds."""
        return self._cpu.seconds()


class _ChildClock:
    """Adds up the CPU time of worker processes: each reports its own as it exits.

    ``RUSAGE_CHILDREN`` is no use: Windows lacks it, and workers of a fork server (the default on
    Linux from Python 3.14) are the server's children.
    """

    def __init__(self) -> None:
        self._total = Value("d", 0.0)

    def __call__(self, worker_id: int) -> None:
        """Start the clock of the worker process that calls; torch's ``worker_init_fn``.

        The worker prints nothing from now on.  Its errors go to the parent, which shows them;
        anything else is noise, such as that of a send which Ctrl-C in the parent cut off.
        """
        del worker_id
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
        warnings.simplefilter("ignore")
        Finalize(None, self._stop, args=(time.process_time(),), exitpriority=0)

    def _stop(self, start: float) -> None:
        with self._total:
            self._total.value += time.process_time() - start

    def seconds(self) -> float:
        """Return the sum so far, in seconds."""
        with self._total:
            return float(self._total.value)


@contextmanager
def _interrupts_held() -> Iterator[None]:
    """Start processes that never see Ctrl-C.

    A terminal sends Ctrl-C to them too, and a process that is just starting would print a
    traceback.  They inherit the signal mask, also through ``exec``.  This process gets its Ctrl-C
    when the mask is lifted, and then ends them.
    """
    if sys.platform == "win32":
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


@contextmanager
def _failures_unheard() -> Iterator[None]:
    """End torch's workers without a traceback for errors of their end.

    A spawned worker that is stopped while it starts may abort as it exits.  torch's iterator then
    raises in ``__del__``, where an error can only be printed.
    """
    before, sys.unraisablehook = sys.unraisablehook, lambda _: None
    try:
        yield
    finally:
        sys.unraisablehook = before


def _stacked(samples: list[Any]) -> Any:
    images, labels = zip(*samples, strict=True)
    return np.stack(images), np.array(labels)


def _count(number: int, unit: str) -> str:
    return f"{number} {unit}" if number == 1 else f"{number} {unit}s"
