"""Accelerate: `prepare` and `skip_first_batches`, with our helpers around them."""

from __future__ import annotations

import itertools
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("accelerate")

import accelerate
import torch
from accelerate import Accelerator
from support.patience import PATIENCE
from torch.utils.data import DataLoader

from clients.points import Points, Stream, lists, model
from threadloader import ThreadLoader
from threadloader.integrations.accelerate import prepare, skip_first_batches

OWN = {"threads": 2, "prefetch": 3, "dataset_copy": "shared"}
BATCHES = [
    pytest.param(Points, {"batch_size": 4}, id="batches"),
    pytest.param(Points, {"batch_size": 4, "drop_last": True}, id="drop_last"),
    pytest.param(Points, {"batch_size": 4, "shuffle": True}, id="shuffle"),
    pytest.param(Stream, {"batch_size": 4}, id="stream"),
]
SAMPLES = [
    pytest.param(Points, {"batch_size": None}, id="samples"),
    pytest.param(Stream, {"batch_size": None}, id="stream-samples"),
]


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


def torchs(samples: type, arguments: dict[str, Any]) -> DataLoader:
    """Return torch's loader; a stream depends on the number of workers."""
    return DataLoader(samples(), num_workers=2 if samples is Stream else 0, **arguments)


def two_epochs(loader: Any) -> list[Any]:
    torch.manual_seed(2)
    return [lists(loader), lists(loader)]


def test_without_help_the_threads_are_lost_in_silence(accelerator: Accelerator) -> None:
    loader = ThreadLoader(Points(), **OWN)
    assert type(accelerator.prepare(loader).base_dataloader) is DataLoader
    assert type(accelerate.skip_first_batches(loader, 1)) is DataLoader


@pytest.mark.parametrize(("samples", "arguments"), BATCHES + SAMPLES)
def test_a_prepared_loader_gives_the_same_batches(
    accelerator: Accelerator, samples: type, arguments: dict[str, Any]
) -> None:
    dataset = samples()
    expected = two_epochs(accelerator.prepare(torchs(samples, arguments)))
    loader = prepare(accelerator, ThreadLoader(dataset, **arguments, **OWN))
    assert two_epochs(loader) == expected
    assert len(loader) == len(expected[0])
    assert is_ours(loader.base_dataloader)
    assert dataset.by_workers


@pytest.mark.parametrize("prepared", [False, True], ids=["bare", "prepared"])
@pytest.mark.parametrize(("samples", "arguments"), BATCHES)
def test_the_first_batches_are_skipped(
    accelerator: Accelerator, samples: type, arguments: dict[str, Any], prepared: bool
) -> None:
    dataset = samples()
    reference: Any = torchs(samples, arguments)
    loader: Any = ThreadLoader(dataset, **arguments, **OWN)
    if prepared:
        reference, loader = accelerator.prepare(reference), prepare(accelerator, loader)
    expected = two_epochs(accelerate.skip_first_batches(reference, 2))
    rest = skip_first_batches(loader, 2)
    assert two_epochs(rest) == expected
    assert is_ours(getattr(rest, "base_dataloader", rest))
    assert dataset.by_workers
    if samples is Points:
        delivered = sum(len(values) for epoch in expected for values, _ in epoch)
        assert len(dataset.visitors) == delivered  # what is skipped is not even fetched


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


def test_a_number_of_threads_that_was_not_chosen_is_found_as_before(
    accelerator: Accelerator,
) -> None:
    loader = prepare(accelerator, ThreadLoader(Points(), batch_size=4)).base_dataloader
    assert type(loader) is ThreadLoader
    assert loader._settings().tunes_threads  # noqa: SLF001  # nobody else has to know


def test_what_a_subclass_sets_is_kept(accelerator: Accelerator) -> None:
    class Listing(ThreadLoader):
        def __init__(self, points: Points, **arguments: Any) -> None:
            super().__init__(points, collate_fn=len, **arguments)

    loader = prepare(accelerator, Listing(Points(), batch_size=4, **OWN))
    assert list(loader) == [4, 4, 4, 4, 4, 2]
    assert is_ours(loader.base_dataloader)


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

    points = Points(size)
    expected = steps(lambda each: each.prepare(DataLoader(Points(size), 4)))
    assert steps(lambda each: prepare(each, ThreadLoader(points, 4, **OWN))) == expected
    assert points.by_workers


@pytest.mark.parametrize("loader", [DataLoader, ThreadLoader], ids=["bare", "rebuilt"])
def test_a_loader_without_threads_is_refused(accelerator: Accelerator, loader: type) -> None:
    lost = loader(Points())
    if loader is ThreadLoader:
        lost = accelerator.prepare(lost)
    with pytest.raises(TypeError, match="must be a ThreadLoader"):
        skip_first_batches(lost, 1)


def test_what_accelerate_can_not_share_out_is_refused(accelerator: Accelerator) -> None:
    with pytest.raises(TypeError, match="IterableDataset"):
        prepare(accelerator, ThreadLoader(n for n in range(4)))


def test_two_processes_get_what_torch_gives_them_and_resume() -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    cluster = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": "2"}
    paths = os.pathsep.join([str(Path(__file__).parents[1]), *sys.path])
    processes = [
        subprocess.Popen(
            [sys.executable, "-m", "clients.two_processes"],
            env=os.environ | cluster | {"RANK": rank, "LOCAL_RANK": rank, "PYTHONPATH": paths},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for rank in "01"
    ]
    try:
        for process in processes:
            said, _ = process.communicate(timeout=PATIENCE)
            assert process.returncode == 0, said
    finally:
        for process in processes:
            process.kill()
            process.wait()
