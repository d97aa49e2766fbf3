"""A batch that nobody keeps gives its slot back: a loop needs two more than the window."""

from __future__ import annotations

import copy
import pickle
import weakref
from threading import Event
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from support.lent_batches import ROWS, SIZE, WINDOW, Epochs, Late, held, make, plain_loops, slots_of
from support.patience import PATIENCE
from support.streams import each_output
from support.workers import each_kind_of_workers, join_workers

from threadloader import ThreadLoader

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from support.patience import Spawn


pytestmark = pytest.mark.usefixtures("slots_for_all_leaves")


def root_of(loader: ThreadLoader[Any]) -> Any:
    """Return the memory of the first batch, 1024 bytes."""
    return next(iter(loader)).reshape(-1)


def plain_loader() -> ThreadLoader[Any]:
    return ThreadLoader([np.arange(1024).astype(np.uint8)], 1, threads=0, output="numpy")


VIEWS: dict[str, Callable[[np.ndarray[Any, Any]], object]] = {
    "slice": lambda root: root[8:16],
    "row of rows": lambda root: root.reshape(8, 128)[3][5:],
    "other dtype": lambda root: root[:800].view(np.float64),
    "transposed": lambda root: root.reshape(8, 128).T,
    "read-only": lambda root: np.broadcast_to(root, (3, 1024)),
    "iterated": lambda root: next(iter(root.reshape(8, 128))),
    "memoryview": memoryview,
    "of its memoryview": lambda root: np.asarray(memoryview(root)[4:]),
    "buffer of a view": lambda root: np.frombuffer(root[10:], np.uint8),
    "as_strided": lambda root: np.lib.stride_tricks.as_strided(root, (2,), (1,)),
    "sliding": lambda root: np.lib.stride_tricks.sliding_window_view(root, 4),
    "structured field": lambda root: root[:900].view([("a", "u1", 8), ("b", "u1")])["b"],
    "dlpack": lambda root: np.from_dlpack(root[3:]),
    "empty": lambda root: root[:0],
}


@pytest.mark.parametrize("view", VIEWS.values(), ids=VIEWS)
def test_any_view_keeps_the_slot(view: Callable[[Any], object]) -> None:
    loader = plain_loader()
    kept = view(root_of(loader))
    assert loader.statistics().slots.leased == 1
    del kept
    assert loader.statistics().slots.leased == 0


TENSORS: dict[str, Callable[[Any, Any], object]] = {
    "from_numpy": lambda torch, root: torch.from_numpy(root),
    "view of a tensor": lambda torch, root: torch.from_numpy(root)[4:].view(-1, 2)[1],
    "from a view": lambda torch, root: torch.from_numpy(root[8:].view(np.float32)[2:]),
    "detached": lambda torch, root: torch.from_numpy(root).detach(),
    "storage": lambda torch, root: torch.from_numpy(root).untyped_storage(),
    "array of a tensor": lambda torch, root: torch.from_numpy(root)[2:].numpy(),
    "as_tensor": lambda torch, root: torch.as_tensor(root),
    "unbound": lambda torch, root: torch.from_numpy(root.reshape(8, 128)).unbind()[7],
    "frombuffer": lambda torch, root: torch.frombuffer(root, dtype=torch.uint8),
    "dlpack": lambda torch, root: torch.from_dlpack(root[5:]),
}


@pytest.mark.parametrize("view", TENSORS.values(), ids=TENSORS)
def test_any_tensor_keeps_the_slot(view: Callable[[Any, Any], object]) -> None:
    torch = pytest.importorskip("torch")
    loader = plain_loader()
    kept = view(torch, root_of(loader))
    assert loader.statistics().slots.leased == 1
    del kept
    assert loader.statistics().slots.leased == 0


def test_autograd_keeps_the_slot_that_it_saved() -> None:
    torch = pytest.importorskip("torch")
    loader = plain_loader()
    weight = torch.ones(100, requires_grad=True)
    loss = (torch.from_numpy(root_of(loader)[:400].view(np.float32)) * weight).sum()
    assert loader.statistics().slots.leased == 1
    loss.backward()
    assert loader.statistics().slots.leased == 0


@pytest.mark.parametrize(
    "copied", [np.copy, copy.deepcopy, lambda root: pickle.loads(pickle.dumps(root)), bytes]
)
def test_a_copy_keeps_no_slot(copied: Callable[[Any], object]) -> None:
    loader = plain_loader()
    kept = copied(root_of(loader))
    assert kept is not None
    assert loader.statistics().slots.leased == 0


def test_a_slot_that_another_thread_let_go_is_free(spawn: Spawn) -> None:
    """On a free-threaded build it is its maker that finalises it, as soon as it runs again."""

    def hand_over(loader: ThreadLoader[Any]) -> list[int]:
        hands = [next(iter(loader))]
        leased = [loader.statistics().slots.leased]
        spawn(hands.clear).result(PATIENCE)
        leased.append(loader.statistics().slots.leased)
        return leased

    assert spawn(hand_over, make(Epochs())).result(PATIENCE) == [1, 0]


def test_an_idle_worker_keeps_nothing_of_its_last_batch(spawn: Spawn) -> None:
    class Index:
        """An index that can be referred to weakly."""

    class Constant:
        def __getitem__(self, index: Index) -> int:
            return 0

    gone = Event()

    def one_index() -> Iterator[Index]:
        index = Index()
        weakref.finalize(index, gone.set)
        yield index

    with make(Constant(), sampler=one_index(), threads=1, persistent_workers=True) as loader:
        spawn(list, loader).result(PATIENCE)
        # In short waits: on a free-threaded build it may be this thread that has to finalise it.
        assert any(gone.wait(PATIENCE / 1000) for _ in range(1000))


@each_output
@each_kind_of_workers
@pytest.mark.parametrize("window", [1, 2, 4])
def test_a_plain_loop_needs_at_most_two_slots_more_than_the_window(
    window: int, workers: dict[str, Any], output: str, spawn: Spawn
) -> None:
    # Two threads that are both late may hold no more than what is planned: not one more.
    with make(Epochs(), prefetch=window, output=output, **workers) as loader:
        made = spawn(plain_loops, loader, 5).result(PATIENCE)
    assert max(made) <= window + 2


def loops_with_errors(loader: ThreadLoader[Any], epochs: int) -> list[int]:
    """Like `plain_loops`, but one batch of each epoch is an error, and the loop goes on."""
    made = []
    for _ in range(epochs):
        iterator = iter(loader)
        for _ in range(SIZE // ROWS):
            try:
                batch = next(iterator)
            except LookupError:
                continue
            assert len(batch)
        assert next(iterator, None) is None
        made.append(slots_of(loader))
    return made


@each_kind_of_workers
def test_an_error_in_each_epoch_takes_no_slot_away(workers: dict[str, Any], spawn: Spawn) -> None:
    with make(Epochs(bad=10), **workers) as loader:
        first, *later = spawn(loops_with_errors, loader, 5).result(PATIENCE)
    assert max(first, *later) <= WINDOW + 2 + max(0, loader.num_workers - 1)


def loops_with_breaks(loader: ThreadLoader[Any], epochs: int) -> int:
    for _ in range(epochs):
        for number, batch in enumerate(loader):
            assert len(batch)
            if number == 3:
                break
        if not loader.persistent_workers:
            join_workers()  # a sample that is running at the break keeps its batch until it ends
    return slots_of(loader)


@each_kind_of_workers
def test_a_break_in_each_epoch_takes_no_slot_away(workers: dict[str, Any], spawn: Spawn) -> None:
    with make(Epochs(), **workers) as loader:
        made = spawn(loops_with_breaks, loader, 20).result(PATIENCE)
        running = loader.num_workers - 1 if loader.persistent_workers else 0
    assert made <= WINDOW + 2 + running


@pytest.mark.usefixtures("one_row_tickets")
def test_a_late_sample_keeps_its_slot_until_it_ends(spawn: Spawn) -> None:
    dataset = Late(late=ROWS + 1)

    def abandon_while_it_runs(loader: ThreadLoader[Any]) -> tuple[int, int]:
        iterator = iter(loader)
        next(iterator)
        assert dataset.entered.wait(PATIENCE)
        del iterator
        filling = loader.statistics().slots.filling
        dataset.gate.set()
        return filling, held(loader)

    assert spawn(abandon_while_it_runs, make(dataset, prefetch=1, threads=1)).result(PATIENCE) == (
        1,
        0,
    )
