"""A loader as a ``Stateful`` in torch.distributed.checkpoint."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import pytest

from threadloader import StateError, ThreadLoader
from threadloader.integrations.checkpoint import WholeState

checkpoint = pytest.importorskip("torch.distributed.checkpoint")

WAYS: dict[str, dict[str, Any]] = {
    "sharded": {"shuffle": True, "seed": 1, "shard": (0, 1)},
    "keyed": {"shuffle": "keyed", "seed": 1},
    "without a seed": {"shuffle": True},
}


@pytest.mark.parametrize("way", list(WAYS))
def test_a_checkpoint_brings_all_of_a_state_to_a_new_loader(way: str, tmp_path: Path) -> None:
    def made() -> ThreadLoader[Any]:
        return ThreadLoader(range(40), 4, threads=0, **WAYS[way])

    loader = made()
    iterator = iter(loader)
    next(iterator)
    expected = loader.state_dict()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # there is one process
        checkpoint.save({"loader": WholeState(loader)}, checkpoint_id=tmp_path, no_dist=True)
        rest = [batch.tolist() for batch in iterator]
        again = made()
        checkpoint.load({"loader": WholeState(again)}, checkpoint_id=tmp_path, no_dist=True)
    assert again.state_dict() == expected
    assert [batch.tolist() for batch in again] == rest


def test_a_state_of_which_entries_were_lost_is_refused_with_the_remedy(tmp_path: Path) -> None:
    def made() -> ThreadLoader[Any]:
        return ThreadLoader(range(40), 4, shuffle=True, seed=1, shard=(0, 1), threads=0)

    loader = made()
    next(iter(loader))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # there is one process
        checkpoint.save({"loader": loader}, checkpoint_id=tmp_path, no_dist=True)
        with pytest.raises(StateError, match="WholeState"):
            checkpoint.load({"loader": made()}, checkpoint_id=tmp_path, no_dist=True)
