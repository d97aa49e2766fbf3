"""Lightning's callback: what a loader counts goes to the trainer's loggers."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("lightning")

import lightning as L  # noqa: N812  # its own name for itself
import torch
from lightning.pytorch.loggers.logger import Logger

from clients.points import Points, model
from threadloader import ThreadLoader
from threadloader.integrations.lightning import LoaderMetrics


class Noted(Logger):
    """A logger that keeps what it is given."""

    name, version = "noted", 0

    def __init__(self) -> None:
        super().__init__()
        self.logged: list[tuple[int, dict[str, float]]] = []

    def log_metrics(self, metrics: dict[str, float], step: int | None = None) -> None:
        self.logged.append((step or 0, metrics))

    def log_hyperparams(self, *_: Any, **__: Any) -> None:
        pass


class Line(L.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.line = model()

    def training_step(self, batch: Any, _: int) -> torch.Tensor:
        values, targets = batch[0] if isinstance(batch[0], list | tuple) else batch
        return torch.nn.functional.mse_loss(self.line(values), targets)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.1)


def _logged(loaders: Any, callback: LoaderMetrics) -> list[tuple[int, dict[str, float]]]:
    logger = Noted()
    L.Trainer(
        accelerator="cpu",
        devices=1,
        max_epochs=2,
        logger=logger,
        log_every_n_steps=2,
        callbacks=[callback],
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    ).fit(Line(), loaders)
    return [entry for entry in logger.logged if any("samples" in name for name in entry[1])]


def test_metrics_are_logged_every_few_steps_and_at_the_end_of_an_epoch() -> None:
    loader = ThreadLoader(Points(), batch_size=2, threads=1)
    steps = 2 * len(loader)
    logged = _logged(loader, LoaderMetrics())
    assert {step for step, _ in logged} >= set(range(1, steps, 2))
    assert len(logged) == steps // 2 + 2
    assert logged[-1][1]["loader/epochs_total"] == 2.0
    assert logged[-1][1]["loader/batches_total"] == steps
    totals = [metrics["loader/batches_total"] for _, metrics in logged]
    assert totals == sorted(totals)


def test_several_loaders_have_names_of_their_own() -> None:
    loaders = [ThreadLoader(Points(), batch_size=2, threads=1) for _ in range(2)]
    logged = _logged(loaders, LoaderMetrics(every_n_steps=1, prefix="data/"))
    names = {name for _, metrics in logged for name in metrics}
    assert {"data/samples_total", "data/1/samples_total"} <= names


def test_a_loader_of_torch_s_is_left_alone() -> None:
    assert _logged(torch.utils.data.DataLoader(Points(), batch_size=2), LoaderMetrics()) == []
