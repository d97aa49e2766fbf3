"""pytorch-ignite: its deterministic engine rebuilds the loader with a batch sampler of its own."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("ignite")

import torch
from ignite.engine import DeterministicEngine, Engine, Events
from torch.utils.data import DataLoader

from clients.points import Points
from threadloader import ThreadLoader


def run(
    engine: type[Engine], loader: Any, start: dict[str, Any] | None = None, end: int | None = None
) -> tuple[list[Any], Engine]:
    """Return the batches of two epochs, from a state on or up to an iteration; and the engine."""
    batches = []
    torch.manual_seed(5)
    running = engine(lambda _, batch: batches.append(str(batch)))
    if start is not None:
        running.load_state_dict(start)
    if end is not None:
        running.add_event_handler(Events.ITERATION_COMPLETED(once=end), running.terminate)
    running.run(loader, max_epochs=2)
    return batches, running


@pytest.mark.parametrize("engine", [Engine, DeterministicEngine])
def test_an_engine_sees_the_same_batches(engine: type[Engine]) -> None:
    points = Points()
    loader = ThreadLoader(points, 4, shuffle=True, threads=2)
    batches, running = run(engine, loader)
    assert batches == run(engine, DataLoader(Points(), 4, shuffle=True))[0]
    assert type(running.state.dataloader) is ThreadLoader
    assert points.by_workers


def test_a_resumed_run_sees_the_rest() -> None:
    points = Points()
    loader = ThreadLoader(points, 4, shuffle=True, threads=2)
    # With workers: only then does torch draw from the sampler before the engine sets its states.
    whole, _ = run(DeterministicEngine, DataLoader(Points(), 4, shuffle=True, num_workers=2))
    start, stopped = run(DeterministicEngine, loader, end=8)
    rest, resumed = run(DeterministicEngine, loader, start=stopped.state_dict())
    assert start + rest == whole
    assert type(resumed.state.dataloader) is ThreadLoader
    assert points.by_workers


def test_every_argument_survives_the_rebuilding() -> None:
    loader = ThreadLoader(
        Points(), 4, threads=2, prefetch=3, collate_fn=list, dataset_copy="shared", output="torch"
    )
    used = run(DeterministicEngine, loader)[1].state.dataloader
    assert used is not loader
    assert used.statistics().window == 3
    for name in ("collate_fn", "num_workers", "dataset_copy", "output"):
        assert getattr(used, name) == getattr(loader, name)
