"""Accelerate: `prepare` and `skip_first_batches`, with our helpers around them."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("accelerate")

import accelerate
import torch
from accelerate import Accelerator
from torch.utils.data import DataLoader

from clients.points import Points, Stream, lists, model
from threadloader import ThreadLoader
from threadloader.integrations.accelerate import prepare, skip_first_batches

OWN = {"threads": 2, "prefetch": 3, "dataset_copy": "shared"}
LOADERS = {
    "batches": (Points, {"batch_size": 4}),
    "drop_last": (Points, {"batch_size": 4, "drop_last": True}),
    "shuffle": (Points, {"batch_size": 4, "shuffle": True}),
    "stream": (Stream, {"batch_size": 4}),
    "samples": (Points, {"batch_size": None}),
    "stream-samples": (Stream, {"batch_size": None}),
}


@pytest.fixture
def accelerator() -> Accelerator:
    return Accelerator(cpu=True)


def is_ours(loader: Any) -> bool:
    """Whether a loader is a ThreadLoader with the arguments in `OWN`."""
    return (
        type(loader) is ThreadLoader
        and loader.num_workers == OWN["threads"]
        and loader.dataset_copy == OWN["dataset_copy"]
        and loader.statistics().window == OWN["prefetch"]
    )


def two_epochs(loader: Any) -> list[Any]:
    torch.manual_seed(2)
    return [lists(loader), lists(loader)]


@pytest.mark.parametrize("skipped", [0, 2])
@pytest.mark.parametrize("prepared", [True, False], ids=["prepared", "bare"])
@pytest.mark.parametrize("name", LOADERS)
def test_batches_are_those_of_torch_s_loader_and_made_by_workers(
    accelerator: Accelerator, name: str, prepared: bool, skipped: int
) -> None:
    samples, arguments = LOADERS[name]
    if skipped and arguments["batch_size"] is None:
        pytest.skip("Accelerate skips batches")
    workers = 2 if samples is Stream else 0  # a stream depends on their number
    dataset = samples()
    reference: Any = DataLoader(samples(), num_workers=workers, **arguments)
    loader: Any = ThreadLoader(dataset, **arguments, **OWN)
    if prepared:
        reference, loader = accelerator.prepare(reference), prepare(accelerator, loader)
    if skipped:
        reference = accelerate.skip_first_batches(reference, skipped)
        loader = skip_first_batches(loader, skipped)
    expected = two_epochs(reference)
    assert two_epochs(loader) == expected
    assert is_ours(getattr(loader, "base_dataloader", loader))
    assert dataset.by_workers
    if samples is Points and arguments["batch_size"]:
        delivered = sum(len(values) for epoch in expected for values, _ in epoch)
        assert len(dataset.visits) == delivered  # what is skipped is not even fetched


def test_prepare_takes_and_returns_what_accelerate_does(accelerator: Accelerator) -> None:
    line = model()
    optimizer = torch.optim.SGD(line.parameters(), lr=0.1)
    plain = DataLoader(Points(), batch_size=4)
    loader = ThreadLoader(Points(), batch_size=4, **OWN)
    trained, stepped, reference, ours = prepare(accelerator, line, optimizer, plain, loader)
    assert trained is line
    assert stepped.optimizer is optimizer
    assert type(reference.base_dataloader) is DataLoader
    assert prepare(accelerator, ours) is ours
    assert accelerator.prepare(ours) is ours
    assert is_ours(ours.base_dataloader)


def test_what_a_subclass_sets_is_kept_and_so_is_the_default_number_of_threads(
    accelerator: Accelerator,
) -> None:
    class Listing(ThreadLoader):
        def __init__(self, points: Points, **arguments: Any) -> None:
            super().__init__(points, collate_fn=len, **arguments)

    loader = prepare(accelerator, Listing(Points(), batch_size=4))
    assert list(loader) == [4, 4, 4, 4, 4, 2]
    assert type(loader.base_dataloader) is ThreadLoader
    assert "as many threads as are fastest" in repr(loader.base_dataloader)


@pytest.mark.parametrize("size", [20, 22])
def test_gradients_accumulate_as_with_torch(size: int) -> None:
    def steps(load: Any) -> list[Any]:
        """Return what the accelerator says at each batch, and the weights after it."""
        accelerator = Accelerator(cpu=True, gradient_accumulation_steps=4)
        line = model()
        line, optimizer = accelerator.prepare(line, torch.optim.SGD(line.parameters(), lr=0.1))
        loader = load(accelerator)
        seen = []
        for values, targets in itertools.chain(loader, loader):
            with accelerator.accumulate(line):
                accelerator.backward(torch.nn.functional.mse_loss(line(values), targets))
                optimizer.step()
                optimizer.zero_grad()
            state = accelerator.gradient_state
            told = (state.sync_gradients, state.end_of_dataloader, state.remainder)
            seen.append((told, line.weight.tolist()))
        return seen

    expected = steps(lambda each: each.prepare(DataLoader(Points(size), 4)))
    assert steps(lambda each: prepare(each, ThreadLoader(Points(size), 4, **OWN))) == expected


def test_what_has_no_threads_to_keep_is_refused(accelerator: Accelerator) -> None:
    lost = accelerator.prepare(ThreadLoader(Points()))  # without help they are lost in silence
    assert type(lost.base_dataloader) is DataLoader
    for loader in (lost, DataLoader(Points())):
        with pytest.raises(TypeError, match="must be a ThreadLoader"):
            skip_first_batches(loader, 1)
    with pytest.raises(TypeError, match="IterableDataset"):
        prepare(accelerator, ThreadLoader(n for n in range(4)))
