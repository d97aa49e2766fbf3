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


# With workers torch draws from the sampler before the engine sets its states.
@pytest.mark.parametrize(("engine", "workers"), [(Engine, 0), (DeterministicEngine, 2)])
def test_an_engine_sees_the_same_batches_and_goes_on_with_the_rest(
    engine: type[Engine], workers: int
) -> None:
    points = Points()
    own = {"prefetch": 3, "dataset_copy": "shared", "output": "torch"}
    loader = ThreadLoader(points, 4, shuffle=True, threads=2, **own)
    whole, _ = run(engine, DataLoader(Points(), 4, shuffle=True, num_workers=workers))
    assert run(engine, loader)[0] == whole
    if engine is DeterministicEngine:
        start, stopped = run(engine, loader, end=8)
        rest, resumed = run(engine, loader, start=stopped.state_dict())
        assert start + rest == whole
        used = resumed.state.dataloader
        assert type(used) is ThreadLoader
        assert used is not loader
        assert used.statistics().window == 3
        assert (used.num_workers, used.dataset_copy, used.output) == (2, "shared", "torch")
    assert points.by_workers
