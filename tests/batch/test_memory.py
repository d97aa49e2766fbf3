"""The memory of batches: what a kept leaf keeps, and what a loader takes and gives back."""

from __future__ import annotations

import gc
import weakref
from typing import Any

import numpy as np
import pytest
from support.acting import Acting
from support.patience import PATIENCE, Spawn, becomes

from threadloader import ThreadLoader

MIB = 1 << 20


def images() -> Acting:
    """Return images of 1 MiB and their labels; in batches of four rows."""
    return Acting(40, sample=lambda index: (np.full(MIB, index % 250, np.uint8), index))


def are_freed(memories: list[weakref.ref[Any]]) -> bool:
    return becomes(
        lambda: gc.collect() >= 0 and not any(memory() is not None for memory in memories)
    )


each_crew = pytest.mark.parametrize("threads", [0, 2])


def slots_of(loader: ThreadLoader[Any]) -> Any:
    gc.collect()  # what dies in a cycle is not what is asked
    return loader.statistics().slots


@each_crew
def test_kept_labels_keep_no_image(threads: int, spawn: Spawn) -> None:
    def run() -> list[Any]:
        return [labels for _, labels in loader]

    with ThreadLoader(images(), 4, threads=threads, output="numpy") as loader:
        kept = spawn(run).result(PATIENCE)
        assert becomes(lambda: slots_of(loader).leased == 0)
    assert np.concatenate(kept).tolist() == list(range(40))


@each_crew
def test_buckets_of_different_shapes_take_slots_of_their_own_size(
    threads: int, spawn: Spawn
) -> None:
    def sample(index: int) -> Any:  # small images up to 10,000, large ones from there on
        return np.full((3, 8, 8) if index < 10_000 else (3, 512, 512), index % 250, np.uint8)

    small, large = list(range(2048)), list(range(10_000, 10_004))
    order = [*[large, small, small] * 15, *[large] * 40]

    def run() -> None:
        held = []  # small ones, so that none of their slots is free
        for number, batch in enumerate(loader):
            assert (batch[:, 0, 0, 0] == np.array(order[number]) % 250).all()
            held.append(batch)
            slots = slots_of(loader)
            assert slots.leased == len(held), "it was written into a slot, not collated from a list"
            assert slots.leased_bytes <= 2 * sum(each.nbytes for each in held)
            assert slots.free < 20
            assert slots.free_bytes < 100 * MIB, "none has room for small ones that are large"
            if number == len(order) - 1:
                assert slots.free_bytes == slots.free * slots.leased_bytes, "small ones are gone"
            held = held if order[number] is small else held[:-1] if number < 45 else []

    with ThreadLoader(
        Acting(20_000, sample=sample), batch_sampler=order, threads=threads, output="numpy"
    ) as loader:
        spawn(run).result(PATIENCE)


@each_crew
def test_no_slot_is_kept_between_epochs(threads: int, spawn: Spawn) -> None:
    with ThreadLoader(images(), 4, threads=threads, output="numpy") as loader:
        other = iter(loader)
        spawn(next, other).result(PATIENCE)
        for _ in range(2):
            batches = spawn(list, loader).result(PATIENCE)
            assert len(batches) == 10
            assert {leaf.ctypes.data % 64 for leaf, _ in batches} == {0}
            memories = [weakref.ref(leaf.base.base.obj) for leaf, _ in batches]
            assert loader.statistics().slots.leased >= 10  # of images that are kept
            del batches
            if other is None:  # freed with their last view, whether the loader is asked or not
                assert are_freed(memories)
            assert becomes(lambda: slots_of(loader).leased == 0)
            assert (slots_of(loader).free > 0) is (other is not None)
            other = None


@each_crew
def test_nothing_is_kept_after_close(threads: int, spawn: Spawn) -> None:
    loader = ThreadLoader(images(), 4, threads=threads, output="numpy")
    iterator = iter(loader)
    kept = [spawn(next, iterator).result(PATIENCE)]
    loader.close()
    del iterator
    kept.clear()
    assert becomes(lambda: slots_of(loader).leased == 0)
    assert (slots_of(loader).free, slots_of(loader).filling) == (0, 0)
    assert len(spawn(list, loader).result(PATIENCE)) == 10  # it begins afresh
    loader.close()
