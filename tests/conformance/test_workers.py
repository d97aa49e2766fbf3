"""torch's DataLoader with worker processes: the same batches, and the same use of random state."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch.utils.data import DataLoader

from conformance.datasets import Samples
from conformance.loading import batches, ours, outcomes, story
from threadloader import ThreadLoader

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from contextlib import AbstractContextManager

pytestmark = pytest.mark.filterwarnings("ignore:.*use of fork:DeprecationWarning")


def processes(*args: Any, **arguments: Any) -> DataLoader[Any]:
    return DataLoader(*args, num_workers=2, multiprocessing_context="fork", **arguments)


@pytest.mark.parametrize("threads", [1, 3])
def test_batches_and_order_are_those_of_worker_processes(threads: int) -> None:
    def build(loader: Callable[..., Any]) -> Any:
        made = [(torch.full((2,), float(n)), {"label": n, "name": str(n)}) for n in range(11)]
        return loader(Samples(made), 3, shuffle=True)

    assert story(build, ours(threads)) == story(build, processes)


def test_persistent_workers_draw_as_many_seeds_as_torch_s() -> None:
    # torch seeds them once, so that later epochs draw the sampler's seed alone.
    def build(loader: Callable[..., Any]) -> Any:
        return loader(Samples(range(8)), 4, shuffle=True, persistent_workers=True)

    expected = story(build, processes, epochs=3)
    with ThreadLoader(Samples(range(8)), 4, True, threads=2, persistent_workers=True) as loader:
        assert story(lambda _: loader, ours(2), epochs=3) == expected


@pytest.mark.parametrize("threads", [1, 3])
def test_two_iterators_at_once_draw_as_torch_s_do(threads: int) -> None:
    class Pairs:
        def __init__(self, loader: Any) -> None:
            self.loader = loader
            self.generator = loader.generator

        def __iter__(self) -> Iterator[Any]:
            return zip(self.loader, self.loader, strict=True)

    def build(loader: Callable[..., Any]) -> Any:
        return Pairs(loader(Samples(range(10)), 4, shuffle=True, generator=torch.Generator()))

    told = story(build, ours(threads))
    assert told == story(build, processes)
    assert len(batches(told)) == 6


class NeedsGrad:
    """Computes its samples, as one that runs a frozen network would."""

    def __init__(self) -> None:
        self.weight = torch.ones(2, requires_grad=True)

    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> torch.Tensor:
        return self.weight * index


@pytest.mark.parametrize("threads", [0, 1, 3])
@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_samples_are_made_in_the_grad_mode_of_the_consumer(
    mode: Callable[[], AbstractContextManager[Any]], threads: int
) -> None:
    # So it is with torch, in the calling process and in forked workers, which inherit the mode.
    def in_mode(loader: Any) -> Iterator[Any]:
        with mode():
            return list(outcomes(loader))

    assert in_mode(ThreadLoader(NeedsGrad(), 2, threads=threads)) == in_mode(
        DataLoader(NeedsGrad(), 2)
    )
