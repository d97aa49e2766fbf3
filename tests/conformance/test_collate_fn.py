"""A user's ``collate_fn``, and torch's map of collate functions that users extend."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
from torch.utils.data import default_collate
from torch.utils.data._utils.collate import default_collate_fn_map

from conformance.datasets import Samples
from conformance.loading import batches, errors
from threadloader import ThreadLoader

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

OBJECTS = [object() for _ in range(5)]


def _skip_none(samples: list[Any]) -> Any:
    return default_collate([sample for sample in samples if sample is not None])


def _identity(samples: list[Any]) -> list[int]:
    return [OBJECTS.index(sample) for sample in samples]


COLLATE_FNS: dict[str, Callable[[Any], Any]] = {
    "list": list,
    "type": type,
    "None": lambda samples: None,  # noqa: ARG005
    "sum": sum,
    "generator": lambda samples: list(reversed(samples)),
    "default_collate": default_collate,
    "changes its argument": lambda samples: samples.pop(),
}


@pytest.mark.parametrize("batch_size", [1, 2, None])
@pytest.mark.parametrize("case", COLLATE_FNS)
def test_a_collate_fn(case: str, batch_size: int | None, alike: Callable[..., Any]) -> None:
    alike(lambda loader: loader(Samples(range(5)), batch_size, collate_fn=COLLATE_FNS[case]))


def test_a_collate_fn_gets_the_samples_themselves(alike: Callable[..., Any]) -> None:
    assert not errors(alike(lambda loader: loader(Samples(OBJECTS), 2, collate_fn=_identity)))


def test_a_collate_fn_may_leave_samples_out(alike: Callable[..., Any]) -> None:
    told = alike(lambda loader: loader(Samples([1, None, 3, None, None]), 2, collate_fn=_skip_none))
    assert errors(told) == [IndexError] * 2  # of the batch that is left empty


class Celsius:
    def __init__(self, degrees: float) -> None:
        self.degrees = degrees


def _collate_celsius(batch: list[Celsius], *, collate_fn_map: Any = None) -> torch.Tensor:  # noqa: ARG001
    return torch.tensor([celsius.degrees for celsius in batch])


def _sum_tensors(batch: Any, *, collate_fn_map: Any = None) -> Any:  # noqa: ARG001
    return sum(batch)


@pytest.fixture
def collate_fns() -> Iterator[dict[Any, Any]]:
    """Torch's map, which is put back after the test."""
    before = dict(default_collate_fn_map)
    yield default_collate_fn_map
    default_collate_fn_map.clear()
    default_collate_fn_map.update(before)


def test_an_own_type_in_torch_s_map_is_collated(
    collate_fns: dict[Any, Any], alike: Callable[..., Any]
) -> None:
    collate_fns[Celsius] = _collate_celsius
    made = [(Celsius(number), number) for number in range(5)]
    assert not errors(alike(lambda loader: loader(Samples(made), 2)))


@pytest.mark.parametrize("kind", [torch.Tensor, np.ndarray, int, str])
def test_a_function_replaced_in_torch_s_map_is_used(
    kind: type, collate_fns: dict[Any, Any], alike: Callable[..., Any]
) -> None:
    collate_fns[kind] = lambda batch, *, collate_fn_map: f"{len(batch)} of {kind}"  # noqa: ARG005
    made = [(torch.ones(2), np.ones(2), number, str(number)) for number in range(5)]
    told = alike(lambda loader: loader(Samples(made), 2))
    assert f"'2 of {kind!r}'" in str(batches(told)).replace("\\", "").replace('"', "'")


def test_a_kind_removed_from_torch_s_map_is_refused(
    collate_fns: dict[Any, Any], alike: Callable[..., Any]
) -> None:
    del collate_fns[int]
    assert errors(alike(lambda loader: loader(Samples(range(4)), 2))) == [TypeError] * 4


class Labelled(torch.Tensor):
    """As MONAI's MetaTensor, and torchvision's images."""


def test_a_subclass_of_tensor_in_torch_s_map_is_for_its_own_instances(
    collate_fns: dict[Any, Any], alike: Callable[..., Any]
) -> None:
    collate_fns[Labelled] = lambda batch, *, collate_fn_map: [len(batch)]  # noqa: ARG005
    made = [(torch.ones(2).as_subclass(Labelled), torch.ones(2), number) for number in range(4)]
    assert not errors(alike(lambda loader: loader(Samples(made), 2)))
    # Others are still written into slots, which have rows for what `default_collate` refuses.
    flipped: Any = ThreadLoader(Samples([np.arange(3)[::-1]] * 4), batch_size=2, threads=0)
    assert [batch.tolist() for batch in flipped] == [[[2, 1, 0]] * 2] * 2


def test_the_map_put_back_is_the_default_again(alike: Callable[..., Any]) -> None:
    before = default_collate_fn_map[torch.Tensor]
    default_collate_fn_map[torch.Tensor] = _sum_tensors
    default_collate_fn_map[torch.Tensor] = before
    told = alike(lambda loader: loader(Samples([torch.ones(2)] * 4), 2))
    assert batches(told)[0][2] == (2, 2)


EXTENDED_BEFORE_IMPORT = """
import torch
from torch.utils.data._utils.collate import default_collate_fn_map
default_collate_fn_map[torch.Tensor] = lambda batch, *, collate_fn_map=None: sum(batch)
from threadloader import ThreadLoader
for batch in ThreadLoader(torch.ones(4), 4, threads=1):
    assert batch.item() == 4, batch
"""


def test_a_map_that_was_extended_before_the_import_is_used() -> None:
    done = subprocess.run(
        [sys.executable, "-c", EXTENDED_BEFORE_IMPORT], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
