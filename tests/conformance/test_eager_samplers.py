"""A sampler that draws its order as soon as it is asked to: once an epoch, and torch's order."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch
from support.patience import PATIENCE

from conformance.loading import ours, story, torchs

if TYPE_CHECKING:
    from collections.abc import Iterator

    from support.patience import Spawn

    from conformance.loading import MakeLoader

EPOCHS = 3


class Eager:
    """Draws in ``__iter__``, which is no generator; yields indices, or batches of two."""

    def __init__(self, *, batches: bool = False) -> None:
        self.batches = batches
        self.starts = 0

    def __len__(self) -> int:
        return 3 if self.batches else 6

    def __iter__(self) -> Iterator[Any]:
        self.starts += 1
        drawn = torch.randperm(6)
        return iter(drawn.reshape(3, 2).tolist() if self.batches else drawn.tolist())


KINDS: dict[str, tuple[str, bool, Any]] = {
    "sampler": ("sampler", False, {"batch_size": 2}),
    "sampler, no batches": ("sampler", False, {"batch_size": None}),
    "sampler of batches": ("sampler", True, {"batch_size": None}),
    "batch_sampler": ("batch_sampler", True, {}),
}


@pytest.mark.parametrize("threads", [0, 1, 2, 4])
@pytest.mark.parametrize("kind", KINDS)
def test_it_is_started_once_an_epoch_and_its_order_is_torch_s_without_workers(
    kind: str, threads: int, spawn: Spawn
) -> None:
    name, whole, arguments = KINDS[kind]
    samplers: list[Eager] = []

    def build(make: MakeLoader) -> Any:
        samplers.append(Eager(batches=whole))
        return make(torch.arange(6), **{name: samplers[-1]}, **arguments)

    expected = spawn(story, build, torchs, EPOCHS).result(PATIENCE)
    got = spawn(story, build, ours(threads), EPOCHS).result(PATIENCE)
    assert got["epochs"] == expected["epochs"]
    assert [sampler.starts for sampler in samplers] == [EPOCHS, EPOCHS]


def test_persistent_workers_start_it_no_more_often(spawn: Spawn) -> None:
    sampler = Eager()

    def build(make: MakeLoader) -> Any:
        return make(torch.arange(6), sampler=sampler, persistent_workers=True)

    spawn(story, build, ours(2), EPOCHS).result(PATIENCE)
    assert sampler.starts == EPOCHS
