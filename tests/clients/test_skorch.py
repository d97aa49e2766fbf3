"""skorch: makes its loaders itself, of the class that it is given."""

from __future__ import annotations

import threading
from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("skorch")

import numpy as np
import torch
from sklearn.base import clone
from skorch import NeuralNetRegressor
from skorch.dataset import Dataset
from torch.utils.data import DataLoader

from clients.points import WORKER, model, point
from threadloader import ThreadLoader

X = np.stack([point(index)[0].numpy() for index in range(22)])
Y = np.stack([point(index)[1].numpy() for index in range(22)])
THREADS = {"iterator_train__threads": 2, "iterator_valid__threads": 2}
VISITORS: set[str] = set()


class Visited(Dataset):
    """skorch's dataset; notes the names of the threads that were here."""

    def __getitem__(self, index: int) -> Any:
        VISITORS.add(threading.current_thread().name)
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
    VISITORS.clear()
    torch.manual_seed(11)
    fitted.fit(X, Y)
    return fitted.history[:, ("train_loss", "valid_loss")], fitted.predict(X).tolist()


def test_a_fit_by_threads_has_the_same_losses_and_predictions() -> None:
    expected = fit(net(DataLoader))
    for made in (net(ThreadLoader, **THREADS), clone(net(ThreadLoader, **THREADS))):
        assert fit(made) == expected
        assert VISITORS
        assert all(map(WORKER.fullmatch, VISITORS - {"MainThread"}))
        assert any(map(WORKER.fullmatch, VISITORS))
