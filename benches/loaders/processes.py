"""The limit of the machine: a bare loop per core, each a process of its own.

Nothing is shared, nothing is handed over and every batch is written over one of those
before, so no loader that delivers batches to one consumer can do better.  A process writes as
many batches in turn as a loader keeps for each of its threads, about: one alone would stay in
the caches, where memory is what limits. The processes start together behind a barrier, and one
that has finished goes on loading, unmeasured, until the last has: each is measured with all cores
busy.
"""

from __future__ import annotations

import multiprocessing
from dataclasses import replace
from itertools import cycle
from typing import TYPE_CHECKING, Any

import numpy as np

from benches.loaders.catalog import Loader, Setup

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from multiprocessing.connection import Connection
    from multiprocessing.sharedctypes import Synchronized
    from multiprocessing.synchronize import Barrier

    from numpy.typing import NDArray

    from benches.harness.record import Answer, Question

__all__ = ["Rival", "measure_together"]

BUFFERS = 4  # batches of a process
START_S = 120.0  # longest wait for the others' start, seconds


class Rival(Loader):
    """One of the processes: a bare loop that writes into reused batches."""

    def __init__(self, setup: Setup) -> None:
        self._dataset = setup.dataset
        value = np.asarray(setup.dataset[0][0])
        self._batches = [
            (
                np.empty((setup.batch_size, *value.shape), value.dtype),
                np.empty(setup.batch_size, np.int64),
            )
            for _ in range(BUFFERS)
        ]

    def __iter__(self) -> Iterator[tuple[NDArray[Any], NDArray[np.int64]]]:
        """Yield one epoch; each batch overwrites an earlier one."""
        turn = cycle(self._batches)
        size = len(self._batches[0][1])
        for start in range(0, len(self._dataset), size):
            values, labels = next(turn)
            for row in range(size):
                values[row], labels[row] = self._dataset[start + row]
            yield values, labels


def measure_together(question: Question, measure: Callable[..., Answer]) -> tuple[Answer, ...]:
    """Run ``question.workers`` processes at the same time.

    Args:
        question: What each process is asked, for one worker.
        measure: `benches.harness.measurement.measure`; a module-level function.

    Returns:
        An answer for each process.

    Raises:
        RuntimeError: A process died; it has said why on its standard error.
    """
    # Not fork: a child that shares the parent's pages would pay for copying them.
    context = multiprocessing.get_context("spawn")
    barrier = context.Barrier(question.workers)
    running = context.Value("i", question.workers)
    pipes, children = [], []
    for _ in range(question.workers):
        receiver, sender = context.Pipe(duplex=False)
        child = context.Process(
            target=_run, args=(question, measure, barrier, running, sender), daemon=True
        )
        child.start()
        sender.close()
        pipes.append(receiver)
        children.append(child)
    try:
        return tuple(pipe.recv() for pipe in pipes)
    except EOFError:
        raise RuntimeError("a process of the limit died") from None
    finally:
        for child in children:
            child.join(timeout=1)
            child.kill()


def _run(
    question: Question,
    measure: Callable[..., Answer],
    barrier: Barrier,
    running: Synchronized[int],
    sender: Connection,
) -> None:
    """Be one of the processes: measure, then keep the core busy for the others."""

    def finish(loader: Rival) -> None:
        with running:
            running.value -= 1
        while running.value:
            for _ in loader:
                if not running.value:
                    break

    answer = measure(
        replace(question, workers=1),
        before_rate=lambda: barrier.wait(START_S),
        after_rate=finish,
    )
    sender.send(answer)
