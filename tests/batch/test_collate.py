"""Samples to batch: by rows where they fit, by the collate function where not, and always right."""

from __future__ import annotations

import importlib.util
import threading
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from conformance.samples import BEYOND, ODD, PLAIN, Leaf, samples, tickets_of
from hypothesis import given
from hypothesis import strategies as st
from support.patience import PATIENCE
from support.pictures import picture

from threadloader import ThreadLoader
from threadloader._batch.collate import Collation
from threadloader._batch.direct_filling import MAX_PAUSE
from threadloader._batch.numpy_collate import numpy_collate
from threadloader._batch.ring import Ring

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from concurrent.futures import Future

    from threadloader._batch.filling import Filling
    from threadloader._layout.leaves import Output

pytestmark = pytest.mark.usefixtures("slots_for_all_leaves")

TORCH = importlib.util.find_spec("torch") is not None
needs_torch = pytest.mark.skipif(not TORCH, reason="needs torch")
each_output = pytest.mark.parametrize(
    "output", [pytest.param("numpy"), pytest.param("torch", marks=needs_torch)]
)


def _collation(ring: Ring, output: Output = "numpy") -> Collation:
    return Collation(None, output=output, batched=True, ring=ring)


def _fill(filling: Filling, made: Sequence[Any], tickets: Sequence[tuple[int, int]]) -> Any:
    """Return the batch, or raise its error."""
    for start, stop in tickets:
        filling.write(start, stop, list(made[start:stop]))
    failed = filling.finish()
    if failed is not None:
        raise failed[0]
    return filling.take()


def _rows(made: Sequence[Any]) -> list[tuple[int, int]]:
    return [(row, row + 1) for row in range(len(made))]


def _outcome(function: Callable[..., Any], *args: Any) -> Any:
    try:
        return picture(function(*args))
    except Exception as error:  # noqa: BLE001  # whatever NumPy raises
        return type(error), str(error)


@given(
    made=st.lists(samples((*PLAIN, *ODD, BEYOND), min_size=1), min_size=1, max_size=3),
    data=st.data(),
)
def test_batches_and_errors_are_those_of_the_collate_function(
    made: list[list[Any]], data: st.DataObject
) -> None:
    collation = _collation(Ring(batches=2))
    for batch in made:
        filling = collation.open(len(batch))
        tickets = data.draw(tickets_of(len(batch)))
        assert _outcome(_fill, filling, batch, tickets) == _outcome(numpy_collate, batch)


@given(leaf=st.sampled_from(PLAIN), batches=st.lists(st.integers(1, 4), min_size=1, max_size=5))
def test_batches_that_are_kept_stay_as_they_are(leaf: Leaf, batches: list[int]) -> None:
    ring = Ring(batches=2)
    collation = _collation(ring)
    made = [[leaf(10 * n + row) for row in range(rows)] for n, rows in enumerate(batches)]
    kept = [_fill(collation.open(len(batch)), batch, _rows(batch)) for batch in made]
    assert list(map(picture, kept)) == [picture(numpy_collate(batch)) for batch in made]


@pytest.mark.parametrize("leaf", PLAIN, ids=lambda leaf: leaf.name)
def test_each_leaf_of_plain_samples_is_delivered_from_a_slot_of_its_own(leaf: Leaf) -> None:
    ring = Ring(batches=2)
    made = [(np.ones(2), leaf(row)) for row in range(4)]
    batch = _fill(_collation(ring).open(4), made, _rows(made))
    slots = 1 if leaf.name in {"str", "bytes"} else 2
    assert ring.statistics().leased == slots
    del batch
    assert ring.statistics().free == slots


@pytest.mark.parametrize("leaf", [*ODD, BEYOND], ids=lambda leaf: leaf.name)
def test_samples_that_fall_back_keep_no_slot(leaf: Leaf) -> None:
    ring = Ring(batches=2)
    made = [1, 2, leaf(3), 4]
    filling = _collation(ring).open(4)
    _outcome(_fill, filling, made, _rows(made))
    assert (ring.statistics().leased, ring.statistics().free) == (0, 1)


def test_the_batch_after_a_new_shape_is_direct_again() -> None:
    ring = Ring(batches=2)
    collation = _collation(ring)
    for side in (2, 2, 3, 3):
        made = [np.full((side, side), row) for row in range(4)]
        batch = _fill(collation.open(4), made, _rows(made))
        assert picture(batch) == picture(np.stack(made))
    assert ring.statistics().leased == 1


def test_a_batch_that_shrinks_takes_the_slot_of_a_full_one() -> None:
    ring = Ring(batches=2)
    collation = _collation(ring)
    for rows in (4, 3, 4, 2):
        _fill(collation.open(rows), [1.5] * rows, _rows([1.5] * rows))
    assert ring.statistics().made == 1


def test_after_any_time_of_ragged_batches_regular_ones_are_direct_again() -> None:
    ring = Ring(batches=2)
    collation = _collation(ring)
    for _ in range(100):
        _fill(collation.open(2), ["a", 1], [(0, 2)])
    assert not ring.statistics().leased
    for _ in range(MAX_PAUSE + 2):
        batch = _fill(collation.open(2), [1, 2], [(0, 2)])
    assert ring.statistics().leased == 1
    assert batch.tolist() == [1, 2]


def test_ragged_batches_are_seldom_tried() -> None:
    ring = Ring(batches=0)  # so that each try makes a slot
    collation = _collation(ring)
    for length in range(1, 1001):
        made = [[0] * (1 + length % 3), [0] * (2 + length % 3)]
        _outcome(_fill, collation.open(2), made, [(0, 2)])
    assert ring.statistics().made < 3 * 30  # of up to three numbers each


def test_an_abandoned_batch_gives_its_slot_back() -> None:
    ring = Ring(batches=2)
    filling = _collation(ring).open(4)
    filling.write(0, 2, [1, 2])
    assert ring.statistics().filling == 1
    del filling
    assert (ring.statistics().filling, ring.statistics().free) == (0, 1)


def test_rows_written_by_many_threads_at_once_make_one_batch(
    spawn: Callable[..., Future[Any]],
) -> None:
    made = [(np.full(3, row), {"row": row, "name": str(row)}) for row in range(64)]
    for _ in range(20):
        filling = _collation(Ring(batches=2)).open(64)
        start = threading.Barrier(4)

        def write(first: int, filling: Filling = filling, start: Any = start) -> None:
            start.wait(PATIENCE)
            for row in range(first, 64, 4):
                filling.write(row, row + 1, [made[row]])

        for writing in [spawn(write, first) for first in range(4)]:
            writing.result(PATIENCE)
        assert filling.finish() is None
        assert picture(filling.take()) == picture(numpy_collate(made))


@pytest.mark.parametrize("tickets", [[(0, 1), (1, 2), (2, 4)], [(2, 4), (0, 2)]], ids=str)
def test_the_odd_row_is_named(tickets: list[tuple[int, int]]) -> None:
    made = [np.ones(2), np.ones(2), np.ones(2), np.ones(3)]
    filling = _collation(Ring(batches=2)).open(4)
    for start, stop in tickets:
        filling.write(start, stop, made[start:stop])
    failed = filling.finish()
    assert failed is not None
    error, row = failed
    assert isinstance(error, RuntimeError)
    assert row == 3


class Custom:
    """A collate function that keeps what it was given."""

    def __init__(self) -> None:
        self.given: Any = None

    def __call__(self, made: Any) -> str:
        self.given = made
        return "collated"


def test_a_collate_fn_gets_a_list_of_the_samples_themselves_in_order() -> None:
    ring, custom = Ring(batches=2), Custom()
    collation = Collation(custom, output="numpy", batched=True, ring=ring)
    made = [np.ones(1), object(), None, [2]]
    assert _fill(collation.open(4), made, [(3, 4), (0, 2), (2, 3)]) == "collated"
    assert type(custom.given) is list
    assert all(given is sample for given, sample in zip(custom.given, made, strict=True))
    assert ring.statistics().made == 0


@pytest.mark.parametrize("whole", [(1, 2), {0: 1}, [1], None], ids=repr)
def test_a_whole_batch_of_any_type_reaches_the_collate_fn_as_it_is(whole: Any) -> None:
    custom = Custom()
    filling = Collation(custom, output="numpy", batched=True, ring=Ring(batches=2)).open(2)
    filling.write(0, 2, whole)
    assert filling.finish() is None
    assert custom.given is whole


def test_an_error_of_a_collate_fn_names_no_row() -> None:
    error = ValueError("mine")

    def refuse(made: Any) -> Any:  # noqa: ARG001
        raise error

    filling = Collation(refuse, output="numpy", batched=True, ring=Ring(batches=2)).open(1)
    filling.write(0, 1, [1])
    assert filling.finish() == (error, None)


@each_output
def test_the_default_function_given_by_the_user_is_as_good_as_none(output: Output) -> None:
    ring = Ring(batches=2)
    function = _collation(ring, output=output).function
    collation = Collation(function, output=output, batched=True, ring=ring)
    batch = _fill(collation.open(2), [1, 2], [(0, 2)])
    assert ring.statistics().leased == 1
    assert batch.tolist() == [1, 2]


@each_output
def test_a_single_sample_is_not_collated(output: Output) -> None:
    ring = Ring(batches=2)
    collation = Collation(None, output=output, batched=False, ring=ring)
    filling = collation.open(1)
    filling.write(0, 1, [np.ones(2)])
    assert filling.finish() is None
    assert filling.take().tolist() == [1, 1]
    assert ring.statistics().made == 0


# Through the loader: is the path taken that the samples allow?

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


@needs_torch
@pytest.mark.parametrize("threads", [0, 1, 3])
def test_tensors_are_direct_unless_numpy_has_no_such_thing(threads: int) -> None:
    import torch  # noqa: PLC0415  # torch is optional

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


@needs_torch
@pytest.mark.parametrize("threads", [0, 1, 3])
def test_numpy_output_of_tensors_is_arrays(threads: int) -> None:
    import torch  # noqa: PLC0415  # torch is optional

    made = [(torch.full((2,), n), {"n": n, "s": str(n)}) for n in range(4)]
    for batch_size in (1, 4):
        for values, rest in ThreadLoader(made, batch_size, threads=threads, output="numpy"):
            assert type(values) is type(rest["n"]) is np.ndarray


@pytest.mark.parametrize("threads", [0, 1, 3])
def test_numpy_output_is_writable_and_the_consumer_s_own(threads: int) -> None:
    made = np.arange(4.0)
    (batch,) = ThreadLoader(made, 4, threads=threads, output="numpy")
    batch[:] = -1
    assert made.tolist() == [0, 1, 2, 3]
    (again,) = ThreadLoader(made, 4, threads=threads, output="numpy")
    assert again.tolist() == [0, 1, 2, 3]
