"""Lightning: the trainer's loop, the samplers it injects, and Fabric."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("lightning")

import lightning as L  # noqa: N812  # its own name for itself
import torch
from torch.utils.data import DataLoader

from clients.points import Points, lists, model
from threadloader import ThreadLoader


class Fitted(L.LightningModule):
    """Keeps its losses and predictions; makes its own loader if it is given how."""

    def __init__(self, make: Any = None) -> None:
        super().__init__()
        self.line = model()
        self.losses: list[float] = []
        self.make = make

    def train_dataloader(self) -> Any:
        return self.make()

    def training_step(self, batch: Any, _index: int) -> torch.Tensor:
        values, targets = batch[0] if isinstance(batch[0], list | tuple) else batch
        loss = torch.nn.functional.mse_loss(self.line(values), targets)
        self.losses.append(loss.item())
        return loss

    def predict_step(self, batch: Any, _index: int) -> Any:
        return batch[1].tolist()

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.1)


def trainer(**options: Any) -> L.Trainer:
    quiet = ("enable_checkpointing", "enable_progress_bar", "enable_model_summary", "logger")
    own = {"accelerator": "cpu", "devices": 1, "max_epochs": 2, **dict.fromkeys(quiet, False)}
    return L.Trainer(**own | options)


@pytest.mark.parametrize("hook", [False, True], ids=["loader", "hook"])
@pytest.mark.parametrize(
    "options",
    [{}, {"strategy": "ddp"}, {"overfit_batches": 2}],
    ids=["plain", "distributed", "overfit"],
)
def test_a_fit_has_the_same_losses(options: dict[str, Any], hook: bool) -> None:
    def losses(kind: type, points: Points, workers: int) -> tuple[list[float], type]:
        torch.manual_seed(7)
        fitted = Fitted(lambda: kind(points, batch_size=4, shuffle=True, num_workers=workers))
        fit = trainer(**options)
        fit.fit(fitted, None if hook else fitted.make())
        return fitted.losses, type(fit.train_dataloader)

    points = Points()
    expected, _ = losses(DataLoader, Points(), 0)
    assert losses(ThreadLoader, points, 2) == (expected, ThreadLoader)
    assert points.by_workers


def test_predictions_and_fabric_have_threads() -> None:
    points, its = Points(), DataLoader(Points(), batch_size=4)
    loader = ThreadLoader(points, batch_size=4, threads=2)
    predict = trainer()
    assert predict.predict(Fitted(), loader) == trainer().predict(Fitted(), its)
    assert type(predict.predict_dataloaders) is ThreadLoader  # a rebuilt one
    fabric = L.Fabric(accelerator="cpu", devices=1)
    assert lists(fabric.setup_dataloaders(loader)) == lists(its)
    assert points.by_workers
