"""Samples to batch: by rows where they fit, by the collate function where not, and always right."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from conformance.samples import BEYOND, ODD, PLAIN, samples
from hypothesis import given, settings
from hypothesis import strategies as st
from support.pictures import outcomes
from support.streams import each_output

from threadloader import ThreadLoader
from threadloader._batch.direct_filling import MAX_PAUSE
from threadloader._batch.layout import Output
from threadloader._batch.numpy_collate import numpy_collate

pytestmark = pytest.mark.usefixtures("slots_for_all_leaves")


@pytest.mark.usefixtures("one_row_tickets")
@settings(max_examples=60)
@given(
    made=st.lists(samples((*PLAIN, *ODD, BEYOND), min_size=1), min_size=1, max_size=3),
    rows=st.integers(1, 4),
    threads=st.sampled_from([0, 2]),
)
def test_batches_and_errors_are_those_of_the_collate_function(
    made: list[list[Any]], rows: int, threads: int
) -> None:
    flat = [sample for batch in made for sample in batch]
    expected = [
        outcomes(map(numpy_collate, [flat[start : start + rows]]))[0]
        for start in range(0, len(flat), rows)
    ]
    loader = ThreadLoader(flat, rows, threads=threads, dataset_copy="shared", output="numpy")
    assert outcomes(loader) == expected


def leased(made: list[Any], rows: int) -> list[int]:
    """Return how many slots each batch of an epoch has."""
    loader = ThreadLoader(made, rows, threads=0, output="numpy")
    told = []
    for batch in loader:
        told.append(loader.statistics().slots.leased)
        del batch
    return told


def test_batches_after_a_new_shape_are_direct_again() -> None:
    made = [np.full((side, side), 1) for side in (2, 2, 3, 3) for _ in range(4)]
    assert leased(made, 4) == [1, 1, 1, 1]


def test_after_any_time_of_ragged_batches_regular_ones_are_direct_again() -> None:
    ragged, regular = ["a", 1] * 100, [1] * 2 * (MAX_PAUSE + 2)
    told = leased([*ragged, *regular], 2)
    assert not any(told[:100])
    assert told[-1] == 1


def test_ragged_batches_are_seldom_tried() -> None:
    made = [[0] * (n + 1 + length % 3) for length in range(1, 901) for n in (0, 1)]
    loader = ThreadLoader(made, 2, threads=0, output="numpy")
    assert len(outcomes(loader)) == 900
    assert loader.statistics().slots.made < 3 * 30  # of up to three numbers each


@each_output
def test_the_default_function_given_by_the_user_is_as_good_as_none(output: Output) -> None:
    function = ThreadLoader([1, 2], 2, output=output).collate_fn
    loader = ThreadLoader([1, 2], 2, collate_fn=function, threads=0, output=output)
    (batch,) = loader
    assert loader.statistics().slots.leased == 1
    assert batch.tolist() == [1, 2]


# Is the path taken that the samples allow?

DIRECT: dict[str, Callable[[int], Any]] = {
    "array": lambda n: np.full((2, 3), n),
    "array and int": lambda n: (np.full(2, n), n),
    "dict": lambda n: {"x": np.float32(n), "name": str(n)},
    "list of lists": lambda n: [[n, n], [n, n]],
}

FALLING_BACK: dict[str, Callable[[int], Any]] = {
    "array subclass": lambda n: np.ma.array([n, n]),
    "ragged text and numbers": lambda n: str(n) if n % 2 == 0 else n,
    "many numbers": lambda n: [n] * 65,
    "no elements": lambda n: np.empty((0, n * 0)),
    "dicts of other order": lambda n: dict(sorted({"a": n, "b": n}.items(), reverse=n % 2 == 0)),
}


@each_output
@pytest.mark.parametrize("threads", [0, 1, 3])
@pytest.mark.parametrize("case", DIRECT)
def test_plain_samples_take_the_direct_path(case: str, threads: int, output: Output) -> None:
    made = [DIRECT[case](number) for number in range(12)]
    loader = ThreadLoader(made, 4, threads=threads, output=output)
    kept = list(loader)
    leaves = {"array": 1, "array and int": 2, "dict": 1, "list of lists": 4}[case]
    assert len(kept) == 3
    assert loader.statistics().slots.leased == 3 * leaves


@each_output
@pytest.mark.parametrize("threads", [0, 1, 3])
@pytest.mark.parametrize("case", FALLING_BACK)
def test_samples_that_fall_back_take_no_slot(case: str, threads: int, output: Output) -> None:
    made = [FALLING_BACK[case](number) for number in range(12)]
    loader = ThreadLoader(made, 4, threads=threads, output=output)
    kept = list(loader)
    assert len(kept) == 3
    assert loader.statistics().slots.leased == 0


@pytest.mark.parametrize("threads", [0, 1, 3])
def test_tensors_are_direct_unless_numpy_has_no_such_thing(threads: int) -> None:
    torch = pytest.importorskip("torch")

    special = {
        "plain": torch.ones(2),
        "view": torch.ones(4, 2).T[0],
        "bfloat16": torch.ones(2, dtype=torch.bfloat16),
        "grad": torch.ones(2, requires_grad=True),
        "Parameter": torch.nn.Parameter(torch.ones(2)),
        "conjugated": torch.ones(2, dtype=torch.complex64).conj(),
    }
    direct = set()
    for name, tensor in special.items():
        loader = ThreadLoader([tensor] * 4, 2, threads=threads)
        kept = list(loader)
        if loader.statistics().slots.leased == len(kept):
            direct.add(name)
    assert direct == {"plain", "view"}
