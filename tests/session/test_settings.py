"""Arguments are checked once and stay; torch's may be set, and count from the next epoch."""

from __future__ import annotations

import copy
from threading import get_ident
from typing import Any

import numpy as np
import pytest
from support.patience import PATIENCE, Spawn
from support.streams import lists, make

from threadloader import ThreadLoader
from threadloader._loader.arguments import ARGUMENTS
from threadloader._order.samplers import BatchSampler
from threadloader._torch.device import StreamlessDevice

WRONG = {
    "dataset": [7, object()],
    "batch_size": [0, -1, "4", 2.0, True],
    "sampler": [7],
    "batch_sampler": [7],
    "collate_fn": ["stack"],
    "threads": [-1, "2", 1.5, True],
    "drop_last": ["no"],
    "generator": ["seed", 7],
    "prefetch": [0, -1, 1.5, "2", True, [2]],
    "device_prefetch": [0, -3, None, 2.0, False],
    "max_skipped": [-1, 0.5, "3", True],
    "snapshot_every_n_steps": [-1, 1.5, "1", True],
    "output": ["jax", 3, b"numpy", ["numpy"]],
    "dataset_copy": ["copy", None, 1, ("auto",), list],
    "on_error": ["ignore", None, True, ("skip",)],
    "seed": [-1, 1.5, "7", 1 << 64, [1], object()],
    "transform": [3, "f"],
}
NO_VALUE = {
    *("batch_sampler", "dataset", "max_skipped"),
    *("seed", "snapshot_every_n_steps", "transform"),
}
RIGHT = {
    "prefetch": [1, 20, None],
    "device_prefetch": [1, 9],
    "max_skipped": [0, 5, None],
    "snapshot_every_n_steps": [0, 3, None],
    "output": ["numpy"],
    "dataset_copy": ["auto", "shared", "deep"],
    "on_error": ["raise", "skip", lambda *_: "skip"],
    "seed": [0, 7, (1 << 64) - 1, None],
}


@pytest.mark.parametrize(
    ("name", "value"), [(name, value) for name, values in WRONG.items() for value in values]
)
def test_a_wrong_value_is_refused(name: str, value: Any) -> None:
    with pytest.raises((TypeError, ValueError), match=name) as caught:
        make(iter([1]) if name == "transform" else [1, 2, 3], **{name: value})
    assert name in NO_VALUE or str(value) in str(caught.value)


def test_a_seed_and_a_generator_exclude_each_other() -> None:
    with pytest.raises(ValueError, match="seed and generator"):
        make([1], seed=1, generator=np.random.default_rng(0))


@pytest.mark.parametrize(
    ("name", "value"), [(name, value) for name, values in RIGHT.items() for value in values]
)
def test_a_right_value_is_kept(name: str, value: Any) -> None:
    loader = make([1, 2, 3], **{name: value})
    assert getattr(loader, name) == value
    assert lists(loader) == [[1, 2, 3]]


def test_an_argument_that_torchs_loader_lacks_is_not_set_later() -> None:
    loader = make([1, 2, 3])
    for twin in (loader, copy.copy(loader)):
        for name in ARGUMENTS:
            with pytest.raises(ValueError, match=f"'{name}' can't be set"):
                setattr(twin, name, getattr(twin, name))


@pytest.mark.parametrize("name", ["prefetch", "device_prefetch", "max_skipped"])
def test_numbers_of_numpys_become_plain_ones(name: str) -> None:
    loader = make([1, 2, 3], **{name: np.int64(3)})
    assert type(getattr(loader, name)) is int


def test_a_setting_counts_from_the_next_epoch_and_not_before() -> None:
    loader = make(range(6), threads=0)
    iterator = iter(loader)
    assert next(iterator).tolist() == [0, 1, 2]
    loader.collate_fn = len
    assert next(iterator).tolist() == [3, 4, 5]
    assert list(loader) == [3, 3]


@pytest.mark.parametrize("persistent", [False, True])
def test_the_window_follows_prefetch_factor(persistent: bool, spawn: Spawn) -> None:
    with make(range(30), threads=2, persistent_workers=persistent) as loader:
        for factor in (1, 4, 2):
            loader.prefetch_factor = factor
            assert len(spawn(lists, loader).result(PATIENCE)) == 10
            assert loader.statistics().window == 2 * factor


@pytest.mark.parametrize("threads", [0, 2])
def test_a_device_without_streams_is_given_each_batch_by_the_consumer(
    threads: int, monkeypatch: pytest.MonkeyPatch, spawn: Spawn
) -> None:
    device = StreamlessDevice(lambda batch: (get_ident(), batch.tolist()))
    monkeypatch.setattr("threadloader._torch.open_device", lambda value: value)

    def load() -> None:
        with make(range(4), 2, threads=threads, device=device) as loader:
            assert list(loader) == [(get_ident(), [0, 1]), (get_ident(), [2, 3])]

    spawn(load).result(PATIENCE)


def test_an_attribute_that_a_batch_sampler_changes_counts_from_the_next_epoch() -> None:
    sampler = BatchSampler(range(8), 2, drop_last=False)
    loader = ThreadLoader(range(8), batch_sampler=sampler, threads=0, output="numpy")
    assert [len(batch) for batch in loader] == [2, 2, 2, 2]
    sampler.batch_size = 4
    assert [len(batch) for batch in loader] == [4, 4]


def test_a_copy_of_a_loader_has_settings_of_its_own() -> None:
    loader = make(range(8), batch_size=4, threads=0)
    assert len(list(loader)) == 2
    twin = copy.copy(loader)
    twin.collate_fn = len
    assert list(twin) == [4, 4]
    assert [len(batch) for batch in loader] == [4, 4]


def test_threads_is_another_name_for_num_workers_that_may_be_set(spawn: Spawn) -> None:
    def load() -> None:
        loader: ThreadLoader[Any] = ThreadLoader(range(4), 2, threads=1)
        assert loader.threads == 1
        loader.threads = 2
        assert (loader.num_workers, loader.statistics().workers) == (2, 2)
        assert len(list(loader)) == 2

    spawn(load).result(PATIENCE)
