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

from conformance.datasets import Samples
from conformance.loading import THREADS, outcomes
from threadloader import ThreadLoader

each_number_of_threads = pytest.mark.parametrize("threads", THREADS)


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
