"""Lightning: the trainer's loop, the samplers it injects, and Fabric."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("lightning")

import lightning as L  # noqa: N812  # its own name for itself
import torch
from lightning.fabric.utilities.data import _replace_dunder_methods, _update_dataloader
from torch.utils.data import BatchSampler, DataLoader, DistributedSampler

from clients.points import Points, lists, model
from threadloader import ThreadLoader


class Fitted(L.LightningModule):
    """Keeps its losses and predictions; makes its own loader if it is given how."""

    def __init__(self, **loading: Any) -> None:
        super().__init__()
        self.line = model()
        self.losses: list[float] = []
        self.loading = loading

    def train_dataloader(self) -> Any:
        return self.loading["loader"](**self.loading["arguments"])

    def training_step(self, batch: Any, _index: int) -> torch.Tensor:
        values, targets = batch
        loss = torch.nn.functional.mse_loss(self.line(values), targets)
        self.losses.append(loss.item())
        return loss

    def predict_step(self, batch: Any, _index: int) -> Any:
        return batch[1].tolist()

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.1)


def trainer(**options: Any) -> L.Trainer:
    return L.Trainer(
        **{
            "accelerator": "cpu",
            "devices": 1,
            "max_epochs": 2,
            "logger": False,
            "enable_checkpointing": False,
            "enable_progress_bar": False,
            "enable_model_summary": False,
            **options,
        }
    )


def losses(kind: type, points: Points, *, hook: bool, **options: Any) -> tuple[list[float], Any]:
    """Fit with a loader of that class; return the losses and the loader that was used."""
    arguments = {"dataset": points, "batch_size": 4, "shuffle": True, "num_workers": 2}
    if kind is DataLoader:
        arguments["num_workers"] = 0
    torch.manual_seed(7)
    fitted = Fitted(loader=kind, arguments=arguments)
    fit = trainer(**options)
    fit.fit(fitted, None if hook else kind(**arguments))
    return fitted.losses, fit.train_dataloader


@pytest.mark.parametrize("hook", [False, True], ids=["loader", "hook"])
@pytest.mark.parametrize(
    "options",
    [{}, {"strategy": "ddp"}, {"overfit_batches": 2}],
    ids=["plain", "distributed", "overfit"],
)
def test_a_fit_has_the_same_losses(options: dict[str, Any], hook: bool) -> None:
    points = Points()
    expected, _ = losses(DataLoader, Points(), hook=hook, **options)
    got, used = losses(ThreadLoader, points, hook=hook, **options)
    assert got == expected
    assert type(used) is ThreadLoader
    assert points.by_workers


def test_predictions_come_from_a_rebuilt_loader_with_threads() -> None:
    points = Points()
    expected = trainer().predict(Fitted(), DataLoader(Points(), batch_size=4))
    predict = trainer()
    assert predict.predict(Fitted(), ThreadLoader(points, batch_size=4, threads=2)) == expected
    assert type(predict.predict_dataloaders) is ThreadLoader
    assert points.by_workers


@pytest.mark.parametrize("hook", [False, True], ids=["loader", "hook"])
def test_an_injected_sampler_changes_nothing_else(hook: bool) -> None:
    points = Points()
    sampler = DistributedSampler(points, num_replicas=2, rank=1, seed=3)
    own = {"threads": 2, "prefetch": 3, "dataset_copy": "shared"}

    def make() -> ThreadLoader:
        return ThreadLoader(points, 4, drop_last=True, collate_fn=torch.stack, **own)

    if hook:  # as the trainer calls a module's hook
        with _replace_dunder_methods(DataLoader, "dataset"), _replace_dunder_methods(BatchSampler):
            loader = make()
    else:
        loader = make()
    rebuilt = _update_dataloader(loader, sampler)
    assert type(rebuilt) is ThreadLoader
    assert rebuilt.sampler is sampler
    assert rebuilt.statistics().window == 3
    for name in ("batch_size", "drop_last", "collate_fn", "num_workers", "dataset_copy", "output"):
        assert getattr(rebuilt, name) == getattr(loader, name)


def test_an_injected_sampler_leaves_the_window_to_grow() -> None:
    loader = ThreadLoader(Points(), batch_size=4, threads=2)
    rebuilt = _update_dataloader(loader, DistributedSampler(Points(), num_replicas=2, rank=0))
    assert rebuilt.statistics().window == loader.statistics().window


def test_fabric_keeps_the_loader() -> None:
    points = Points()
    fabric = L.Fabric(accelerator="cpu", devices=1)
    loader = fabric.setup_dataloaders(ThreadLoader(points, batch_size=4, threads=2))
    assert lists(loader) == lists(DataLoader(Points(), batch_size=4))
    assert points.by_workers
