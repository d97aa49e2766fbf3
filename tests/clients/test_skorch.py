"""skorch: makes its loaders itself, of the class that it is given."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("skorch")

import numpy as np
import torch
from sklearn.base import clone
from skorch import NeuralNetRegressor
from skorch.dataset import Dataset
from torch.utils.data import DataLoader, get_worker_info

from clients.points import model, point
from threadloader import ThreadLoader

X = np.stack([point(index)[0].numpy() for index in range(22)])
Y = np.stack([point(index)[1].numpy() for index in range(22)])
THREADS = {"iterator_train__threads": 2, "iterator_valid__threads": 2}
VISITS: list[bool] = []


class Visited(Dataset):
    """skorch's dataset; notes whether a worker was here."""

    def __getitem__(self, index: int) -> Any:
        VISITS.append(get_worker_info() is not None)
        return super().__getitem__(index)


def net(loader: type, **options: Any) -> NeuralNetRegressor:
    return NeuralNetRegressor(
        model,
        max_epochs=2,
        lr=0.1,
        batch_size=4,
        verbose=0,
        dataset=Visited,
        iterator_train=loader,
        iterator_valid=loader,
        iterator_train__shuffle=True,
        **options,
    )


def fit(fitted: NeuralNetRegressor) -> Any:
    """Return the losses and predictions of a fit with a known seed."""
    VISITS.clear()
    torch.manual_seed(11)
    fitted.fit(X, Y)
    return fitted.history[:, ("train_loss", "valid_loss")], fitted.predict(X).tolist()


def test_a_fit_by_threads_has_the_same_losses_and_predictions() -> None:
    expected = fit(net(DataLoader))
    for made in (net(ThreadLoader, **THREADS), clone(net(ThreadLoader, **THREADS))):
        assert fit(made) == expected
        assert any(VISITS)
