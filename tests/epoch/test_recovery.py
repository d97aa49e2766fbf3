"""What goes wrong between our own stages costs no batch and leaves nobody waiting."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from support.patience import PATIENCE, Spawn
from support.pictures import told_by
from support.streams import Rows

from threadloader import ClosedError, ThreadLoader
from threadloader._batch import ring as ring_module

pytestmark = pytest.mark.usefixtures("slots_for_all_leaves")


@pytest.mark.parametrize(("threads", "failing"), [(0, 1), (1, 1), (1, 2), (3, 1), (3, 3)])
def test_no_memory_for_a_slot_costs_that_batch_alone(
    threads: int, failing: int, monkeypatch: pytest.MonkeyPatch, spawn: Spawn
) -> None:
    allocate, made = ring_module._allocate, []  # noqa: SLF001  # the one place to run out of memory

    def allocate_but_once(nbytes: int) -> Any:
        made.append(nbytes)
        if len(made) == failing:
            raise MemoryError
        return allocate(nbytes)

    monkeypatch.setattr(ring_module, "_allocate", allocate_but_once)
    loader: Any = ThreadLoader(list(range(20)), 2, threads=threads, output="numpy")
    kept = spawn(outcomes, loader).result(PATIENCE)
    assert kept.count(MemoryError) == 1
    assert len(kept) == 10
    places = [first if first is MemoryError else 2 * place for place, first in enumerate(kept)]
    assert kept == places


def outcomes(loader: Any) -> list[Any]:
    """Return the first number of each batch, or the type of the error in its place."""
    told = told_by(loader, lambda batch: int(batch[0]))
    return [type(each) if isinstance(each, Exception) else each for each in told]


def test_an_epoch_that_does_not_begin_leaves_the_one_before_its_threads(
    spawn: Spawn,
) -> None:
    class Interrupted:
        passes = 0

        def __iter__(self) -> Iterator[int]:
            self.passes += 1
            if self.passes == 2:
                raise KeyboardInterrupt
            return iter(range(20))

    options: dict[str, Any] = {"threads": 2, "persistent_workers": True, "prefetch": 1}
    with ThreadLoader(list(range(20)), 2, sampler=Interrupted(), **options) as loader:
        iterator = iter(loader)
        assert int(spawn(next, iterator).result(PATIENCE)[0]) == 0
        with pytest.raises(KeyboardInterrupt):
            spawn(iter, loader).result(PATIENCE)
        assert spawn(outcomes, iterator).result(PATIENCE) == list(range(2, 20, 2))


@pytest.mark.parametrize("threads", [0, 1, 3])
def test_threads_that_share_an_iterator_take_turns(threads: int, spawn: Spawn) -> None:
    iterator = iter(ThreadLoader(range(400), 2, threads=threads, output="numpy"))
    consumers = [spawn(lambda: [int(batch[0]) for batch in iterator]) for _ in range(4)]
    taken = [first for consumer in consumers for first in consumer.result(PATIENCE)]
    assert sorted(taken) == list(range(0, 400, 2))


@pytest.mark.parametrize(
    "make",
    [
        lambda: ThreadLoader(Rows(1000), 8, threads=1),
        lambda: ThreadLoader(Rows(1000), 8, threads=3, transform=int),
        lambda: ThreadLoader.from_source(lambda number: [0] * number, 8, threads=2),
    ],
    ids=["plain", "transform", "source"],
)
def test_a_second_pass_over_a_plain_iterable_ends_the_first(
    make: Callable[[], ThreadLoader[Any]], spawn: Spawn
) -> None:
    with make() as loader:
        first = iter(loader)
        spawn(next, first).result(PATIENCE)
        second = iter(loader)
        assert int(spawn(next, second).result(PATIENCE)[0]) == 0
        with pytest.raises(ClosedError, match="a later iter"):
            spawn(next, first).result(PATIENCE)
        assert len(spawn(next, second).result(PATIENCE)) == 8
