"""Ranks agree on what they load before their first batch, or an error names who differs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from support.patience import PATIENCE
from support.rank_threads import Store

from threadloader import RankError, _torch
from threadloader._ranks.agreeing import agree

if TYPE_CHECKING:
    from support.patience import Spawn


def agreements(
    monkeypatch: pytest.MonkeyPatch,
    spawn: Spawn,
    records: list[dict[str, Any] | None],
    seconds: float,
) -> list[Any]:
    """Let ranks agree, each in a thread; a rank without a record does not come."""
    store, ranks = Store(), range(len(records))
    monkeypatch.setattr(_torch, "open_rank_store", lambda: store)
    futures = [
        spawn(agree, store, "0/", rank, ranks, record, seconds)
        for rank, record in enumerate(records)
        if record is not None
    ]
    return [future.exception(PATIENCE) or future.result(PATIENCE) for future in futures]


def test_equal_ranks_get_the_record_of_the_first(
    monkeypatch: pytest.MonkeyPatch, spawn: Spawn
) -> None:
    records = [{"rank": rank, "batch_size": 8, "drawn": 100 + rank} for rank in range(4)]
    assert agreements(monkeypatch, spawn, [*records], PATIENCE) == [records[0]] * 4


@pytest.mark.parametrize("name", ["batch_size", "dataset", "version"])
def test_a_rank_that_differs_is_named_on_all_ranks(
    monkeypatch: pytest.MonkeyPatch, name: str, spawn: Spawn
) -> None:
    common: dict[str, Any] = {"batch_size": 8, "dataset": "Images"}
    records = [{**common, "rank": rank} for rank in range(3)]
    records[2][name] = "other"
    errors = agreements(monkeypatch, spawn, [*records], PATIENCE)
    for error in errors:
        assert isinstance(error, RankError)
        assert "rank 2 does not load the same" in str(error)
        assert f"{name} is 'other' there, and {common.get(name)!r} on rank 0" in str(error)


def test_two_ranks_with_one_share_are_named(monkeypatch: pytest.MonkeyPatch, spawn: Spawn) -> None:
    errors = agreements(monkeypatch, spawn, [{"rank": 0}, {"rank": 1}, {"rank": 1}], PATIENCE)
    assert [str(error) for error in errors] == ["ranks 1 and 2 both load the share 1"] * 3


@pytest.mark.filterwarnings("ignore:rank 2 began no epoch")
def test_a_rank_that_does_not_come_is_named_by_all_that_wait(
    monkeypatch: pytest.MonkeyPatch, spawn: Spawn
) -> None:
    first, second = agreements(monkeypatch, spawn, [{"rank": 0}, {"rank": 1}, None], 0.2)
    for error in (first, second):
        assert isinstance(error, RankError)
        assert "rank 2 began no epoch of this loader within" in str(error)
