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

from clients.points import Points, model, point
from threadloader import ThreadLoader

X = np.stack([point(index)[0].numpy() for index in range(22)])
Y = np.stack([point(index)[1].numpy() for index in range(22)])
THREADS = {"iterator_train__threads": 2, "iterator_valid__threads": 2}


class Visited(Dataset):
    """skorch's dataset; keeps the names of the threads that were here."""

    by_workers = Points.by_workers

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.visitors: list[str] = []

    def __getitem__(self, index: int) -> Any:
        self.visitors.append(threading.current_thread().name)
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
    torch.manual_seed(11)
    fitted.fit(X, Y)
    return fitted.history[:, ("train_loss", "valid_loss")], fitted.predict(X).tolist()


def test_a_fit_has_the_same_losses_and_predictions() -> None:
    expected = fit(net(DataLoader))
    assert fit(net(ThreadLoader, **THREADS)) == expected
    assert fit(clone(net(ThreadLoader, **THREADS))) == expected


def test_its_loaders_have_threads() -> None:
    fitted = net(ThreadLoader, **THREADS).initialize()
    for training in (True, False):
        dataset = fitted.get_dataset(X, Y)
        loader = fitted.get_iterator(dataset, training=training)
        assert type(loader) is ThreadLoader
        fitted.history.new_epoch()
        fitted.run_single_epoch(
            loader, training=training, prefix="seen", step_fn=fitted.validation_step
        )
        assert dataset.by_workers
