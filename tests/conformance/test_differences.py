"""Where ThreadLoader differs from torch's DataLoader, and why."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from support.patience import PATIENCE, Spawn
from torch.utils.data import DataLoader

from conformance.datasets import Raises, Samples
from conformance.loading import THREADS, outcomes
from threadloader import SampleError, ThreadLoader

each_number_of_threads = pytest.mark.parametrize("threads", THREADS)


@each_number_of_threads
@pytest.mark.parametrize("collate_fn", [None, next], ids=["in a sample", "in collate_fn"])
def test_a_stop_iteration_is_an_error_where_torch_ends_the_epoch(
    threads: int, collate_fn: Any, spawn: Spawn
) -> None:
    # Lost data should not look like the end of the data.
    made = [0, Raises(lambda: StopIteration(7)), 2] if collate_fn is None else [0, 1, 2]
    stop = (lambda samples: next(iter(())) if 1 in samples else samples) if collate_fn else None
    expected = outcomes(DataLoader(Samples(made), collate_fn=stop))
    assert len(expected) == 1

    loader = ThreadLoader(Samples(made), collate_fn=stop, threads=threads)
    first, second, third = spawn(lambda: outcomes(loader)).result(PATIENCE)
    assert [first] == expected
    assert second[:2] == ("error", SampleError)
    assert third[0] == "batch"
    loading = spawn(list, loader)
    with pytest.raises(RuntimeError) as caught:
        loading.result(PATIENCE)
    assert type(caught.value.__cause__) is StopIteration


def _fails_third() -> Iterator[int]:
    yield from (0, 1)
    raise OSError("sampler")


@pytest.mark.filterwarnings("ignore:.*use of fork:DeprecationWarning")
def test_a_sampler_s_error_comes_in_its_place_where_torch_s_workers_lose_batches() -> None:
    # Drawing ahead is our affair: batches drawn before the error are whole and are delivered.
    with pytest.raises(OSError, match="sampler"):
        iter(DataLoader(range(9), sampler=_fails_third(), num_workers=2, prefetch_factor=2))
    told = outcomes(ThreadLoader(range(9), sampler=_fails_third(), threads=2))
    assert [what for what, *_ in told] == ["batch", "batch", "error"]


@each_number_of_threads
def test_a_batch_is_contiguous_where_torch_keeps_a_memory_format(threads: int) -> None:
    # A slot's rows follow each other; the values are the same.
    clip = torch.rand(5, 8, 8, 3).permute(0, 3, 1, 2)  # frames, as (T, C, H, W)
    (expected,) = DataLoader([clip, clip + 1], 2)
    (batch,) = ThreadLoader([clip, clip + 1], 2, threads=threads)
    assert not expected.is_contiguous()
    assert batch.is_contiguous()
    assert torch.equal(batch, expected)


@pytest.fixture
def warned_each_time() -> Iterator[None]:
    torch.set_warn_always(True)
    yield
    torch.set_warn_always(False)


@pytest.mark.usefixtures("warned_each_time")
@each_number_of_threads
def test_a_read_only_array_is_collated_without_torch_s_warning(threads: int) -> None:
    # The batch is a copy: nothing that is written to it can reach the array.
    array = np.arange(3)
    array.flags.writeable = False
    with warnings.catch_warnings(action="error"):
        (batch,) = ThreadLoader([array, array], 2, threads=threads)
    assert batch.tolist() == [[0, 1, 2]] * 2


FITS = np.zeros(2)
MISFITS: dict[str, list[Any]] = {  # the last of each is the odd one
    "shape": [FITS, FITS, np.zeros(3)],
    "array of str": [FITS, FITS, np.array(["a", "b"])],
    "0-d": [FITS, FITS, np.zeros(())],
    "None": [FITS, FITS, None],
    "number": [FITS, FITS, 1.0],
    "length": [[0] * 5, [0] * 5, [0] * 4],
    "key": [{"a": 1}, {"a": 1}, {"b": 1}],
    "nested": [{"a": (0, FITS)}, {"a": (0, FITS)}, {"a": (0, None)}],
}
WITHOUT_LAYOUT: dict[str, list[Any]] = {  # the direct path does not apply
    "length of a long list": [[0] * 500, [0] * 500, [0] * 499],
    "shape of bfloat16": [torch.zeros(n, dtype=torch.bfloat16) for n in (2, 2, 3)],
}


@each_number_of_threads
@pytest.mark.parametrize("case", [*MISFITS, *WITHOUT_LAYOUT])
def test_a_sample_that_does_not_fit_is_named_by_its_index(case: str, threads: int) -> None:
    made = (MISFITS | WITHOUT_LAYOUT)[case]
    dataset = [*[made[0]] * 3, *made]  # a layout is learned from the first batch
    for order in ([3, 4, 5], [3, 5, 4], [5, 3, 4])[: 3 if case in MISFITS else 1]:
        loader = ThreadLoader(dataset, 3, sampler=[0, 1, 2, *order], threads=threads)
        with pytest.raises((TypeError, RuntimeError, ValueError, KeyError)) as caught:
            list(loader)
        assert caught.value.__notes__[-1].endswith("batch 1, index 5")


@each_number_of_threads
def test_a_flipped_array_is_copied_where_torch_refuses_negative_strides(
    threads: int, spawn: Spawn
) -> None:
    # Torch refuses because a tensor can't have such strides; a row of a slot needs none.  To look
    # for them in each sample would cost 10% where samples take a microsecond.
    flipped = [np.arange(3)[::-1]] * 4
    with pytest.raises(ValueError, match="negative"):
        list(DataLoader(Samples(flipped), batch_size=2))
    loader: Any = ThreadLoader(Samples(flipped), batch_size=2, threads=threads)
    batches = spawn(list, loader).result(PATIENCE)
    assert [batch.tolist() for batch in batches] == [[[2, 1, 0]] * 2] * 2
