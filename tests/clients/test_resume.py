"""A run that was stopped within an epoch goes on where it was, in the packages' own ways."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("accelerate")
pytest.importorskip("lightning")
pytest.importorskip("torchdata")

from collections.abc import Callable
from pathlib import Path

import lightning as L  # noqa: N812  # its own name for itself
import torch
from accelerate import Accelerator
from accelerate.utils import DataLoaderConfiguration
from lightning.pytorch.callbacks import ModelCheckpoint
from torch.utils.data import DataLoader, DistributedSampler
from torchdata.stateful_dataloader import StatefulDataLoader

from clients.points import Points, Stream, lists, model, stopped
from threadloader import ThreadLoader
from threadloader.integrations.accelerate import prepare


def shuffled(size: int = 22, **arguments: Any) -> ThreadLoader:
    return ThreadLoader(Points(size), 4, shuffle=True, **{"seed": size, "threads": 2} | arguments)


LOADERS: dict[str, Callable[[], Any]] = {
    "calling_thread": lambda: shuffled(threads=0),
    "threads": shuffled,
    "generator": lambda: shuffled(seed=None, generator=torch.Generator().manual_seed(3)),
    "stream": lambda: ThreadLoader(Stream(), 4, threads=2),
}
each_loader = pytest.mark.parametrize("load", LOADERS.values(), ids=LOADERS)

# Lightning


class Seen(L.LightningModule):
    """Keeps the epoch, the index and the targets of each batch."""

    def __init__(self) -> None:
        super().__init__()
        self.line = model()
        self.seen: list[tuple[int, int, Any]] = []

    def training_step(self, batch: Any, index: int) -> torch.Tensor:
        batches = batch if isinstance(batch, dict) else {"": batch}
        told = [targets.tolist() for _, targets in batches.values()]
        self.seen.append((self.current_epoch, index, told))
        return sum(self.line(values).mean() for values, _ in batches.values())

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.1)


def fit(loaders: Any, folder: Path, resume: str | None = None, every: int = 4) -> list[Any]:
    """Return what is seen in three epochs of six steps; save it every so many steps."""
    seeing = Seen()
    L.Trainer(
        accelerator="cpu",
        devices=1,
        max_epochs=3,
        logger=False,
        callbacks=[ModelCheckpoint(folder, every_n_train_steps=every, save_top_k=-1)],
        enable_progress_bar=False,
        enable_model_summary=False,
    ).fit(seeing, loaders, ckpt_path=None if resume is None else folder / resume)
    return seeing.seen


def by_sampler() -> ThreadLoader:
    """Return a loader whose sampler Lightning tells of the epoch."""
    sampler = DistributedSampler(Points(), num_replicas=1, rank=0, seed=3)
    return ThreadLoader(Points(), 4, sampler=sampler, threads=2)


@pytest.mark.parametrize(
    "load",
    [*LOADERS.values(), lambda: {"long": shuffled(), "cycled": shuffled(10)}, by_sampler],
    ids=[*LOADERS, "two_loaders", "sampler"],
)
def test_a_fit_sees_the_rest_of_the_epoch_and_then_the_next(
    load: Callable[[], Any], tmp_path: Path
) -> None:
    whole = fit(load(), tmp_path)
    assert len(whole) == 18
    assert fit(load(), tmp_path, "epoch=0-step=4.ckpt") == whole[4:]
    assert fit(load(), tmp_path, "epoch=1-step=8.ckpt") == whole[8:]


def test_fabric_saves_and_loads_a_loader(tmp_path: Path) -> None:
    fabric = L.Fabric(accelerator="cpu", devices=1)
    loader = fabric.setup_dataloaders(shuffled())
    epochs = [lists(loader), lists(loader)]
    loader = fabric.setup_dataloaders(shuffled())
    for _ in itertools.islice(loader, 2):
        pass
    fabric.save(tmp_path / "saved", {"loader": loader})
    loader = fabric.setup_dataloaders(shuffled())
    fabric.load(tmp_path / "saved", {"loader": loader})
    assert [lists(loader), lists(loader)] == [epochs[0][2:], epochs[1]]


# Accelerate


@each_loader
@pytest.mark.parametrize("batches", [0, 1, 3, 5, 6, 7])
def test_a_prepared_loader_goes_on_with_what_was_not_yielded(
    load: Callable[[], Any], batches: int
) -> None:
    loader = prepare(Accelerator(cpu=True), load())
    first, second, third = (lists(loader) for _ in range(3))
    loader = prepare(Accelerator(cpu=True), load())
    lists(loader)
    state = stopped(loader, batches) if batches else loader.state_dict()
    loader = prepare(Accelerator(cpu=True), load())
    loader.load_state_dict(state)
    assert lists(loader) == ((second[batches:] or third) if batches else second)
    assert len(first) == 6


def stateful(load: Callable[[], Any], *others: Any) -> Any:
    """Return an accelerator that saves its loaders, and what it prepared."""
    config = DataLoaderConfiguration(use_stateful_dataloader=True)
    accelerator = Accelerator(cpu=True, dataloader_config=config)
    line = model()
    optimizer = torch.optim.SGD(line.parameters(), lr=0.1)
    return accelerator, prepare(accelerator, line, optimizer, load(), *others)


@each_loader
@pytest.mark.parametrize("batches", [0, 3, 6])
def test_an_accelerator_saves_and_loads_its_loaders(
    load: Callable[[], Any], batches: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(StatefulDataLoader, "__init__", None)  # not to be called in between
    accelerator, (*_, loader) = stateful(load)
    epochs = [lists(loader), lists(loader)]
    accelerator, (*_, loader) = stateful(load)
    stopped(loader, batches)
    accelerator.save_state(str(tmp_path))
    accelerator, (*_, loader) = stateful(load)
    accelerator.load_state(str(tmp_path))
    assert lists(loader) == (epochs[0][batches:] or epochs[1])
    assert type(loader.base_dataloader) is ThreadLoader


def test_two_kinds_of_stateful_loaders_are_not_prepared_in_one_call() -> None:
    with pytest.raises(ValueError, match="a call of their own"):
        stateful(shuffled, DataLoader(Points()))
    accelerator, (*_, ours) = stateful(shuffled)
    torchs = prepare(accelerator, DataLoader(Points()), ours)[0]
    assert type(torchs.base_dataloader) is StatefulDataLoader
