"""``shard=``: one order for all ranks, whatever their number, and a state that all can go on from.

Ranks are simulated, one after the other, by ``shard=(rank, world_size)``.
"""

from __future__ import annotations

import random
from itertools import product
from typing import Any

import numpy as np
import pytest
from support.orders import Drawing, Growing, Striding

from threadloader import ThreadLoader
from threadloader.datasets import ArrayDataset

SAMPLES = 61


def samples_of(batch: Any) -> list[tuple[Any, ...]]:
    return list(zip(*(part.tolist() for part in batch), strict=True))


ORDERS: dict[str, dict[str, Any]] = {
    "sequential": {},
    "shuffled": {"shuffle": True},
    "keyed": {"shuffle": "keyed"},
    "user's": {"sampler": Striding(SAMPLES)},
    "user's batches": {"batch_sampler": Growing(10, 10)},
}
each_order = pytest.mark.parametrize("order", list(ORDERS))


def options_of(order: str, batch_size: int) -> dict[str, Any]:
    options = {"dataset": Drawing(SAMPLES), "seed": 5, "output": "numpy", **ORDERS[order]}
    return options if "batch_sampler" in options else {**options, "batch_size": batch_size}


def loaders_of(world_size: int, *given: Any, **options: Any) -> list[ThreadLoader[Any]]:
    """Return the loaders of all ranks, in the calling thread."""
    arguments = {"threads": 0, "seed": 1, "output": "numpy"} | options
    return [ThreadLoader(*given, shard=(r, world_size), **arguments) for r in range(world_size)]


def flat(ranks: list[list[Any]]) -> list[tuple[Any, ...]]:
    return [sample for batches in ranks for batch in batches for sample in samples_of(batch)]


@each_order
@pytest.mark.parametrize("world_size", [3, 8])
def test_all_ranks_go_as_many_steps_by_leaving_few_samples_out_or_repeating_few(
    order: str, world_size: int
) -> None:
    """The ranks of one epoch load all in its order: see `test_restarts`."""
    whole = flat([list(loader) for loader in loaders_of(1, **options_of(order, 4))])
    batched = "batch" in order
    for uneven in ("drop", "pad"):
        loaders = loaders_of(world_size, **options_of(order, 4), uneven=uneven)
        ranks = [list(loader) for loader in loaders]
        assert len({len(batches) for batches in ranks}) == 1
        got = flat(ranks)
        if not batched:
            for step in zip(*ranks, strict=True):
                assert len({len(batch[0]) for batch in step}) == 1
            assert len(set(got)) == len(got), "repeated samples draw anew"
        if uneven == "drop":
            assert set(got) <= set(whole)
            left_out = 10 % world_size * 10 if batched else SAMPLES % world_size
            assert len(whole) - len(got) <= left_out
        else:
            assert {index for index, *_ in got} == {index for index, *_ in whole}
            assert batched or len(got) == -(-SAMPLES // world_size) * world_size


@pytest.mark.parametrize("uneven", ["drop", "pad", "short"])
def test_the_length_is_the_number_of_steps(uneven: Any) -> None:
    for samples, batch_size in ((0, 2), (3, 1), (16, 2), (17, 2), (61, 4)):
        for drop_last, world_size in product((False, True), (1, 2, 5, 8)):
            options: dict[str, Any] = {"drop_last": drop_last, "uneven": uneven}
            for loader in loaders_of(world_size, range(samples), batch_size, **options):
                assert len(loader) == len(list(loader))


@pytest.mark.parametrize("threads", [0, 2])
def test_arrays_are_shared_out_as_other_data(threads: int) -> None:
    data = ArrayDataset(np.arange(100) * 10)
    for shuffle in (False, True, "keyed"):
        loaders = loaders_of(3, data, 4, shuffle=shuffle, uneven="short", threads=threads)
        got = np.concatenate([np.ravel(batch) for loader in loaders for batch in loader])
        assert sorted(got.tolist()) == [10 * index for index in range(100)]


def test_ranks_draw_different_numbers_also_in_the_collate_function() -> None:
    def collate(_: list[Any]) -> float:
        return random.random()

    drawn = [
        [
            list(loader)
            for loader in loaders_of(4, range(32), 2, collate_fn=collate, threads=threads)
        ]
        for threads in (0, 3)
    ]
    assert drawn[0] == drawn[1]
    assert len({number for rank in drawn[0] for number in rank}) == 16


def test_a_batch_that_other_ranks_have_is_not_left_out() -> None:
    class Broken(Drawing):
        def __getitem__(self, index: int) -> Any:
            if 4 <= index < 8:
                raise KeyError(index)
            return index

    loader = ThreadLoader(Broken(16), 4, shard=(1, 2), on_error="skip", threads=0)
    with pytest.raises(KeyError) as caught:
        list(loader)
    assert any("other ranks have a batch" in note for note in caught.value.__notes__)


REFUSED: list[tuple[dict[str, Any], type[Exception], str]] = [
    *(({"shard": shard}, ValueError, "shard") for shard in ("rank", (2, 2), (-1, 2), (0, 0))),
    *(({"shard": shard}, TypeError, "shard") for shard in ((0, 1, 2), 3, ("a", "b"))),
    ({"shard": (0, 2), "threads": 2, "in_order": False}, ValueError, "in_order=True"),
    ({"uneven": "join"}, ValueError, "uneven must be one of drop, pad, short"),
    ({"shuffle": True, "shard": (0, 2)}, ValueError, "needs seed="),  # ranks would draw differently
]


@pytest.mark.parametrize(("options", "error", "message"), REFUSED)
def test_what_is_no_share_is_refused(options: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        iter(ThreadLoader(range(30), 2, **options))


@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        ({"RANK": "1", "WORLD_SIZE": "3"}, [[2, 3], [8, 9]]),
        # Of SLURM, which a shell within an allocation has, too: they are not read.
        ({"SLURM_PROCID": "1", "SLURM_NTASKS": "6"}, [[0, 1], [2, 3], [4, 5]]),
    ],
    ids=["torchrun", "slurm"],
)
def test_the_environment_says_which_rank_this_is(
    variables: dict[str, str], expected: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("RANK", "WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    size = 12 if "RANK" in variables else 6
    loader: ThreadLoader[Any] = ThreadLoader(
        range(size), 2, shard="auto", output="numpy", threads=0
    )
    assert [batch.tolist() for batch in loader] == expected


class Mesh:
    """Has what is used of torch's ``DeviceMesh``."""

    def __init__(self, ndim: int = 1) -> None:
        self.ndim = ndim

    def get_local_rank(self) -> int:
        return 2

    def size(self) -> int:
        return 3


def test_a_mesh_says_which_share_is_loaded() -> None:
    loader: ThreadLoader[Any] = ThreadLoader(range(12), 2, shard=Mesh(), output="numpy", threads=0)
    assert [batch.tolist() for batch in loader] == [[4, 5], [10, 11]]
    with pytest.raises(TypeError, match="one dimension of a mesh"):
        ThreadLoader(range(12), shard=Mesh(2))
