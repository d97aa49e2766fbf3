"""What the consumer keeps of a batch stays as it is, whatever the loader does later."""

from __future__ import annotations

from collections import deque
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from support.lent_batches import ROWS, SIZE, Epochs, Late, batch_of, each_kind_of_threads, make
from support.patience import PATIENCE
from support.streams import each_output
from support.workers import each_kind_of_workers, join_workers

if TYPE_CHECKING:
    from support.patience import Spawn

    from threadloader import ThreadLoader

pytestmark = pytest.mark.usefixtures("slots_for_all_leaves")


def through(loader: ThreadLoader[Any], epochs: int) -> None:
    """Run later epochs that would write over all that was lent out before: some end early."""
    for epoch in range(epochs):
        loader.dataset.epoch += 1
        loader.dataset.bad = 7 if epoch % 3 == 1 else None
        held = deque[Any](maxlen=2)
        try:
            for number, batch in enumerate(loader):
                held.append(batch)
                if epoch % 3 == 2 and number == 3:
                    break
        except LookupError:
            pass
    loader.dataset.bad = None


@each_output
@each_kind_of_workers
def test_a_list_of_all_batches_is_right(workers: dict[str, Any], output: str, spawn: Spawn) -> None:
    with make(Epochs(), output=output, **workers) as loader:
        batches = spawn(list, loader).result(PATIENCE)
        spawn(through, loader, 6).result(PATIENCE)
    assert len(batches) == SIZE // ROWS
    for number, batch in enumerate(batches):
        np.testing.assert_array_equal(batch, batch_of(0, number))


@each_output
@each_kind_of_threads
def test_views_that_another_thread_keeps_and_drops_never_change(
    workers: dict[str, Any], output: str, spawn: Spawn
) -> None:
    views: SimpleQueue[Any] = SimpleQueue()

    def keep_some() -> int:
        """Keep the last seven views, and look at each one again before it is dropped."""
        kept: deque[Any] = deque()
        wrong = 0
        while (entry := views.get()) is not None:
            kept.append(entry)
            del entry
            if len(kept) > 7:
                view, expected = kept.popleft()
                wrong += not np.array_equal(view, expected)
        return wrong + sum(not np.array_equal(view, expected) for view, expected in kept)

    def consume(loader: ThreadLoader[Any]) -> None:
        for epoch in range(12):
            loader.dataset.epoch = epoch
            for number, batch in enumerate(loader):
                views.put((batch[number % ROWS :], batch_of(epoch, number)[number % ROWS :]))
                if epoch % 4 == 3 and number == 4:
                    break
            loader.close()
        views.put(None)

    keeper = spawn(keep_some)
    spawn(consume, make(Epochs(), output=output, **workers)).result(PATIENCE)
    assert keeper.result(PATIENCE) == 0


@pytest.mark.usefixtures("one_row_tickets")
@each_output
@each_kind_of_threads
def test_a_late_sample_of_an_abandoned_batch_is_written_into_no_batch_of_a_later_epoch(
    workers: dict[str, Any], output: str, spawn: Spawn
) -> None:
    dataset = Late(late=ROWS + 1)  # in the second batch, whose first row has taken a slot

    def abandon_while_it_runs(loader: ThreadLoader[Any]) -> list[Any]:
        iterator = iter(loader)
        next(iterator)
        assert dataset.entered.wait(PATIENCE)
        del iterator
        dataset.epoch = 1
        kept = list(loader)
        dataset.gate.set()
        loader.close()
        join_workers()  # also those of the iterator that was dropped
        return kept

    # A dataset that is not copied, so that persistent workers see the epoch, too.
    loader = make(dataset, output=output, prefetch=1, dataset_copy="shared", **workers)
    kept = spawn(abandon_while_it_runs, loader).result(PATIENCE)
    for number, batch in enumerate(kept):
        np.testing.assert_array_equal(batch, batch_of(1, number))
