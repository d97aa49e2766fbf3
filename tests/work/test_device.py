"""``device=``: what a loader delivers arrives there whole, in order, and however the copies end."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from support.acting import Acting
from support.copies import SIZE, Numbers, batches_of, make, numbers, outcomes
from support.fake_device import FakeDevice
from support.patience import PATIENCE, Spawn, becomes
from support.workers import each_kind_of_workers

from threadloader import ThreadLoader


# A hang takes long to shrink.
@settings(max_examples=40, phases=[Phase.explicit, Phase.reuse, Phase.generate])
@given(
    seed=st.integers(0, 1 << 16),
    threads=st.sampled_from([0, 1, 3]),
    persistent=st.booleans(),
    rows=st.integers(1, 5),
    prefetch=st.none() | st.integers(1, 4),
    ahead=st.integers(1, 3),
    drop_last=st.booleans(),
    in_order=st.booleans(),
    bad=st.frozensets(st.integers(0, SIZE - 1), max_size=2),
    stop=st.none() | st.integers(0, 4),
)
def test_copies_that_end_late_and_in_any_order_deliver_what_there_is(
    seed: int,
    threads: int,
    persistent: bool,
    rows: int,
    prefetch: int | None,
    ahead: int,
    drop_last: bool,
    in_order: bool,
    bad: frozenset[int],
    stop: int | None,
) -> None:
    def build(**arguments: Any) -> ThreadLoader[Any]:
        return ThreadLoader(
            Numbers(bad=bad),
            rows,
            shuffle=True,
            seed=seed,
            output="numpy",
            threads=threads,
            drop_last=drop_last,
            prefetch=prefetch,
            persistent_workers=persistent and threads > 0,
            in_order=in_order,
            **arguments,
        )

    device = FakeDevice(seed)
    with build() as plain, build(device=device, device_prefetch=ahead) as loader:
        for number in range(3):
            expected = list(map(str, outcomes(iter(plain))))
            iterator = iter(loader)
            if number == 1 and stop is not None:
                for _ in range(min(stop, len(loader))):
                    next(iterator, None) if not bad else outcomes(iterator)
                continue
            got = list(map(str, outcomes(iterator)))
            assert got == expected if in_order else sorted(got) == sorted(expected)
    assert not device.broken
    assert device.most_ahead <= 1 + ahead


@each_kind_of_workers
def test_slots_are_reused_and_none_is_left_over(workers: dict[str, Any], spawn: Spawn) -> None:
    device = FakeDevice()
    with make(Numbers(240), device, prefetch=2, device_prefetch=1, **workers) as loader:
        iterator = iter(loader)  # alive, so that closing waits for its threads
        assert spawn(outcomes, iterator).result(PATIENCE) == batches_of(3, 240)
        spawn(loader.close).result(PATIENCE)
        assert becomes(lambda: loader.statistics().slots.filling == 0)
        assert becomes(lambda: loader.statistics().slots.leased == 0)
        slots = loader.statistics().slots
    assert slots.leased_bytes == 0
    assert device.slots == slots.made <= 12
    assert device.copies == loader.statistics().totals.batches == 80


STRUCTURES: dict[str, Callable[[int], Any]] = {
    "strings": lambda n: {"text": str(n), "data": np.full(2, n)},
    "strings alone": str,
    "nested": lambda n: (n, [np.full((2, 2), n, np.int16), {"a": n / 2, "b": b"x"}]),
    "every dtype": lambda n: [np.full(3, n, code) for code in "?bBhHiIlefdFD"],
}


LEAVES = {"strings": 1, "strings alone": 0, "nested": 3, "every dtype": 13}  # that are copied


@pytest.mark.parametrize("name", STRUCTURES)
@each_kind_of_workers
def test_batches_of_any_structure_are_those_without_a_device(
    name: str, workers: dict[str, Any], spawn: Spawn
) -> None:
    dataset = Acting(SIZE, sample=STRUCTURES[name])
    device = FakeDevice()
    with make(dataset, device, **workers) as loader:
        got = spawn(list, loader).result(PATIENCE)
    expected = list(ThreadLoader(dataset, 3, threads=0, output="numpy"))
    assert repr(got) == repr(expected)
    assert device.copies == 8 * LEAVES[name]
    assert (device.moves, len(device.receivers)) == (0, 8)


FALLING_BACK: dict[str, dict[str, Any]] = {
    "a collate function": {"dataset": Numbers(), "collate_fn": np.stack},
    "ragged samples": {"dataset": Acting(SIZE, sample=lambda n: [n, float(n)][n % 2])},
    "single samples": {"dataset": Numbers(8), "batch_size": None},
}


@pytest.mark.parametrize("name", FALLING_BACK)
@each_kind_of_workers
def test_what_lies_in_no_slot_is_moved_by_the_copier(
    name: str, workers: dict[str, Any], spawn: Spawn
) -> None:
    device = FakeDevice()
    arguments = FALLING_BACK[name] | {"device": device} | workers
    with make(**arguments) as loader:
        got = spawn(list, loader).result(PATIENCE)
    assert [word for word, _ in got] == ["moved"] * 8
    assert np.concatenate([np.ravel(batch) for _, batch in got]).size in (8 * 9, 8 * 3)
    assert (device.moves, device.copies, device.broken) == (8, 0, [])


@each_kind_of_workers
def test_an_error_of_page_locking_is_the_batchs_and_no_rows(
    workers: dict[str, Any], spawn: Spawn
) -> None:
    device = FakeDevice(errors={"pin": MemoryError("page-locked")})
    samples = ["a", *[b"b"] * (SIZE - 1)]  # one is unlike the others
    with make(samples, device, collate_fn=list, **workers) as loader:
        told = spawn(outcomes, iter(loader)).result(PATIENCE)
    assert [str(error) for error in told] == ["page-locked"] * 8
    assert not any("index" in note for error in told for note in error.__notes__)


@each_kind_of_workers
@pytest.mark.parametrize("taken", [0, 1, 3, 7])
def test_a_state_counts_what_was_delivered_not_what_was_copied_ahead(
    taken: int, workers: dict[str, Any], spawn: Spawn
) -> None:
    def build() -> ThreadLoader[Any]:
        return make(Numbers(), shuffle=True, seed=5, device_prefetch=3, **workers)

    with build() as loader, build() as resumed:
        whole = spawn(outcomes, iter(loader)).result(PATIENCE)
        resumed.load_state_dict(loader.state_dict())  # of the second epoch
        iterator = iter(loader)
        first = [numbers(spawn(next, iterator).result(PATIENCE)) for _ in range(taken)]
        resumed.load_state_dict(loader.state_dict())
        rest = spawn(outcomes, iter(resumed)).result(PATIENCE)
        assert first + rest == first + spawn(outcomes, iterator).result(PATIENCE)
        assert sorted(itertools.chain(*first, *rest)) == sorted(itertools.chain(*whole))
