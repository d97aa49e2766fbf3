"""The memory of batches: what a kept leaf keeps, and what a loader takes and gives back."""

from __future__ import annotations

import gc
import itertools
from collections import UserDict
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from support.fake_device import FakeDevice
from support.patience import PATIENCE

from threadloader import ThreadLoader
from threadloader._batch import ring as ring_module
from threadloader._order import window as window_module
from threadloader._order.window import PrefetchDepth, Window

if TYPE_CHECKING:
    from collections.abc import Callable

    from support.patience import Spawn

MIB = 1 << 20

each_crew = pytest.mark.parametrize("threads", [0, 2])


class Images:
    """Images of 1 MiB and their labels; in batches of four rows."""

    def __init__(self, size: int = 40) -> None:
        self.size = size

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, index: int) -> tuple[np.ndarray[Any, Any], int]:
        return np.full(MIB, index % 250, np.uint8), index


def slots_of(loader: ThreadLoader[Any]) -> Any:
    gc.collect()  # what dies in a cycle is not what is asked
    return loader.statistics().slots


# What a kept part of a batch keeps


@each_crew
def test_kept_labels_keep_no_image(threads: int, spawn: Spawn) -> None:
    def run() -> list[Any]:
        return [labels for _, labels in loader]

    with ThreadLoader(Images(), 4, threads=threads, output="numpy") as loader:
        kept = spawn(run).result(PATIENCE)
        assert slots_of(loader).leased == 0
    assert np.concatenate(kept).tolist() == list(range(40))


def test_each_large_leaf_is_kept_by_itself(spawn: Spawn) -> None:
    def sample(index: int) -> dict[str, Any]:
        return {"image": np.full(MIB, index, np.uint8), "mask": np.full(MIB // 4, index, np.uint8)}

    def run() -> list[Any]:
        return [batch["mask"] for batch in loader]

    made = [sample(index) for index in range(8)]
    with ThreadLoader(made, 2, threads=2, output="numpy") as loader:
        kept = spawn(run).result(PATIENCE)
        slots = slots_of(loader)
        assert (slots.leased, slots.leased_bytes) == (4, 4 * 2 * MIB // 4)
    assert [mask[:, 0].tolist() for mask in kept] == [[0, 1], [2, 3], [4, 5], [6, 7]]


def owner(array: Any) -> Any:
    """Return the array that owns the memory of another."""
    while isinstance(array.base, np.ndarray):
        array = array.base
    return array


def test_a_kept_leaf_on_a_device_keeps_no_other(spawn: Spawn) -> None:
    device = FakeDevice()
    with ThreadLoader(Images(8), 4, threads=2, output="numpy", device=device) as loader:
        batches = spawn(list, loader).result(PATIENCE)
    assert [leaf.base.nbytes for leaf in itertools.chain(*batches)] == [4 * MIB, 32] * 2
    assert not device.broken


# Batches of different sizes


class Buckets:
    """Small images up to 10,000, large ones from there on."""

    def __len__(self) -> int:
        return 20_000

    def __getitem__(self, index: int) -> Any:
        side = 8 if index < 10_000 else 512
        return np.full((3, side, side), index % 250, np.uint8)


@each_crew
def test_buckets_of_different_shapes_take_slots_of_their_own_size(
    threads: int, spawn: Spawn
) -> None:
    small, large = list(range(2048)), list(range(10_000, 10_004))

    def run() -> None:
        iterator = iter(loader)
        for wanted in order:
            batch = next(iterator)
            assert (batch[:, 0, 0, 0] == np.array(wanted) % 250).all()
            slots = slots_of(loader)
            assert slots.leased == 1, "it was written into a slot, not collated from a list"
            assert slots.leased_bytes <= 2 * batch.nbytes

    order = [small, large] * 6
    with ThreadLoader(Buckets(), batch_sampler=order, threads=threads, output="numpy") as loader:
        spawn(run).result(PATIENCE)


# Bytes on their way


def depths(sizes: list[int], window: Window) -> list[int]:
    """Return how many batches are planned after batches of such sizes were delivered."""
    depth, found = PrefetchDepth(), []
    for nbytes in sizes:
        depth.delivered(nbytes)
        found.append(depth.room(window))
    return found


WINDOW = Window.chosen(2, rows=64, whole_batches=False, prefetch=None, factor=None)


def test_the_window_shrinks_where_batches_grow() -> None:
    assert depths([MIB, 256 * MIB, 256 * MIB, 600 * MIB], WINDOW)[1:] == [3, 3, 2]


def test_batches_that_fill_a_cache_have_a_smaller_window_unless_threads_need_it() -> None:
    few_rows = Window.chosen(16, rows=8, whole_batches=False, prefetch=None, factor=None)
    assert depths([15 * MIB, 15 * MIB, 28 * MIB], WINDOW) == [4, 4, 3]
    assert depths([28 * MIB] * 4, few_rows) == [6, 6, 6, 6]


def test_the_window_grows_by_one_batch_at_a_time() -> None:
    found = depths([MIB] * 20, WINDOW)
    assert all(after - before in (0, 1) for before, after in itertools.pairwise(found))
    assert found[-1] == 16


def test_large_batches_between_small_ones_keep_the_window_small() -> None:
    assert set(depths([300 * MIB, *[MIB] * 3] * 10, WINDOW)) == {3}


def test_the_window_grows_again_after_large_batches() -> None:
    found = depths([600 * MIB] * 3 + [MIB] * 40, WINDOW)
    assert (found[2], found[-1]) == (2, 16)


def test_a_window_that_the_user_chose_stays_as_it_is() -> None:
    window = Window.chosen(2, rows=64, whole_batches=False, prefetch=7, factor=None)
    assert set(depths([MIB, 600 * MIB, 0, MIB], window)) == {7}


def chosen(memory_budget: int | None) -> Window:
    return Window.chosen(
        2,
        rows=64,
        whole_batches=False,
        prefetch=None,
        factor=None,
        memory_budget=memory_budget,
    )


@pytest.mark.parametrize(("mebibytes", "room"), [(1, 2), (5, 5), (10, 10), (4096, 16)])
def test_a_window_takes_no_more_than_the_users_bytes(mebibytes: int, room: int) -> None:
    assert depths([MIB] * 40, chosen(mebibytes * MIB))[-1] == room


@pytest.mark.parametrize(
    ("mebibytes", "free", "room"), [(None, 8000, 100), (None, 2000, 50), (800, 8000, 20)]
)
def test_batches_that_many_threads_need_may_take_what_is_free_or_chosen(
    mebibytes: int | None, free: int, room: int
) -> None:
    depth = PrefetchDepth()
    depth.needed, depth.free_nbytes = 100, free * MIB
    for _ in range(200):
        depth.delivered(40 * MIB)
        found = depth.room(chosen(None if mebibytes is None else mebibytes * MIB))
    assert found == room


def ahead_of(loader_of: Callable[[Any], ThreadLoader[Any]], sizes: list[int]) -> list[int]:
    """Return how many batches are drawn, and not returned, after each one."""
    drawn = itertools.count()
    last = [0]

    def sampler() -> Any:
        for size in sizes:
            last[0] = next(drawn)
            yield [0] * size

    with loader_of(sampler()) as loader:
        return [last[0] - number for number, _ in enumerate(loader)]


def test_a_window_that_is_chosen_later_counts_at_once() -> None:
    depth = PrefetchDepth()
    rooms = []
    for prefetch in (4, 64, 2):
        window = Window.chosen(2, rows=64, whole_batches=False, prefetch=prefetch, factor=None)
        depth.delivered(MIB)
        rooms.append(depth.room(window))
    assert rooms == [4, 64, 2]


def test_the_largest_of_the_last_batches_counts() -> None:
    sizes = [MIB] * 20 + [500 * MIB, *[200 * MIB] * 10, *[MIB] * 6]
    assert depths(sizes, WINDOW)[20:31] == [2] * 11
    assert depths([*sizes, *[MIB] * 9], WINDOW)[-1] > 2


def test_few_batches_are_drawn_when_they_become_large(
    spawn: Spawn, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(window_module, "LARGE_NBYTES", 1 << 20)
    samples = [np.zeros(1 << 10, np.uint8)]

    def loader(sampler: Any) -> ThreadLoader[Any]:
        return ThreadLoader(samples, batch_sampler=sampler, threads=2, output="numpy")

    ahead = spawn(ahead_of, loader, [1] + [300] * 20).result(PATIENCE)
    assert max(ahead) <= 5
    assert ahead[6] == 3


CONTAINERS: dict[str, Callable[[Any], Any]] = {
    "list": lambda array: [[array], "text"],
    "dict": lambda array: {"images": array},
    "user dict": lambda array: UserDict(images=array),
}


@pytest.mark.parametrize("name", CONTAINERS)
def test_batches_of_a_collate_function_count_with_their_bytes(name: str, spawn: Spawn) -> None:
    def loader(sampler: Any) -> ThreadLoader[Any]:
        return ThreadLoader(
            [np.zeros(4)],
            batch_sampler=sampler,
            threads=2,
            output="numpy",
            collate_fn=lambda samples: CONTAINERS[name](np.stack(samples)),
        )

    assert max(spawn(ahead_of, loader, [2] * 40).result(PATIENCE)) == 16


def test_batches_whose_bytes_nobody_knows_are_planned_as_at_first(spawn: Spawn) -> None:
    def loader(sampler: Any) -> ThreadLoader[Any]:
        return ThreadLoader(["text"], batch_sampler=sampler, threads=2, output="numpy")

    assert max(spawn(ahead_of, loader, [2] * 40).result(PATIENCE)) == 4


# What a loader keeps


@pytest.fixture
def little(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ring_module, "IDLE_NBYTES", 40 * MIB)


@pytest.mark.usefixtures("little")
@each_crew
def test_little_is_kept_between_epochs(threads: int, spawn: Spawn) -> None:
    with ThreadLoader(Images(160), 16, threads=threads, output="numpy") as loader:
        for _ in range(2):
            spawn(drain, loader).result(PATIENCE)
            assert slots_of(loader).free_bytes <= 40 * MIB
            assert slots_of(loader).leased == 0


@pytest.mark.usefixtures("little")
@each_crew
def test_little_is_kept_after_a_break(threads: int, spawn: Spawn) -> None:
    def run() -> None:
        for number, _ in enumerate(loader):
            if number == 2:
                break

    loader = ThreadLoader(Images(160), 16, threads=threads, output="numpy")
    spawn(run).result(PATIENCE)
    loader._session.kept_workers.close()  # noqa: SLF001  # wait for running samples, without clearing
    assert slots_of(loader).free_bytes <= 40 * MIB
    loader.close()


@each_crew
def test_nothing_is_kept_after_close(threads: int, spawn: Spawn) -> None:
    loader = ThreadLoader(Images(), 4, threads=threads, output="numpy")
    iterator = iter(loader)
    kept = [spawn(next, iterator).result(PATIENCE)]
    loader.close()
    del iterator
    kept.clear()
    slots = slots_of(loader)
    assert (slots.free, slots.leased, slots.filling) == (0, 0, 0)
    assert len(spawn(list, loader).result(PATIENCE)) == 10  # it begins afresh
    loader.close()


def test_two_loaders_in_turn_take_the_memory_of_one(spawn: Spawn) -> None:
    with (
        ThreadLoader(Images(), 4, threads=2, output="numpy") as training,
        ThreadLoader(Images(), 4, threads=2, output="numpy") as validation,
    ):
        spawn(drain, training).result(PATIENCE)
        for loader, other in [(validation, training), (training, validation)] * 3:
            # Referenced here, so that memory at these addresses can't be new.
            kept = [slot for _, slot in ring_of(other)._free]  # noqa: SLF001
            assert 0 < len(kept) <= 18
            addresses = {np.frombuffer(slot.memory, np.uint8).ctypes.data for slot in kept}
            assert addresses & spawn(addresses_of_images, loader).result(PATIENCE)
            del kept
            assert slots_of(other).free == 0
            assert 0 < slots_of(loader).free <= 18


def ring_of(loader: ThreadLoader[Any]) -> ring_module.Ring:
    return loader._session.ring  # noqa: SLF001


def addresses_of_images(loader: ThreadLoader[Any]) -> set[int]:
    return {images.ctypes.data for images, _ in loader}


def drain(loader: ThreadLoader[Any]) -> None:
    for _ in loader:
        pass


def test_epochs_that_deliver_at_once_may_share_a_depth(spawn: Spawn) -> None:
    depth = PrefetchDepth()

    def deliver() -> None:
        for _ in range(5000):
            depth.delivered(MIB)
            depth.room(WINDOW)

    for delivering in [spawn(deliver) for _ in range(4)]:
        delivering.result(PATIENCE)
    assert depth.room(WINDOW) == 16
