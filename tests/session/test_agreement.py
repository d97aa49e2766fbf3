"""Ranks agree on what they load before their first batch, or an error names who differs."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from support.patience import PATIENCE
from support.rank_threads import Store

from threadloader import RankError, _torch
from threadloader._ranks import agreeing
from threadloader._ranks.agreeing import agree

if TYPE_CHECKING:
    from support.patience import Spawn


def agreements(
    monkeypatch: pytest.MonkeyPatch,
    spawn: Spawn,
    records: list[dict[str, Any]],
) -> list[Any]:
    """Let ranks agree, each in a thread."""
    store, ranks = Store(), range(len(records))
    monkeypatch.setattr(_torch, "open_rank_store", lambda: store)
    futures = [
        spawn(agree, store, "0/", rank, ranks, record, PATIENCE)
        for rank, record in enumerate(records)
    ]
    return [future.exception(PATIENCE) or future.result(PATIENCE) for future in futures]


@pytest.mark.parametrize("name", ["batch_size", "dataset", "version"])
def test_a_rank_that_differs_is_named_on_all_ranks(
    monkeypatch: pytest.MonkeyPatch, name: str, spawn: Spawn
) -> None:
    common: dict[str, Any] = {"batch_size": 8, "dataset": "Images"}
    records = [{**common, "rank": rank} for rank in range(3)]
    records[2][name] = "other"
    errors = agreements(monkeypatch, spawn, records)
    for error in errors:
        assert isinstance(error, RankError)
        assert "rank 2 does not load the same" in str(error)
        assert f"{name} is 'other' there, and {common.get(name)!r} on rank 0" in str(error)


def test_two_ranks_with_one_share_are_named(monkeypatch: pytest.MonkeyPatch, spawn: Spawn) -> None:
    errors = agreements(monkeypatch, spawn, [{"rank": 0}, {"rank": 1}, {"rank": 1}])
    assert [str(error) for error in errors] == ["ranks 1 and 2 both load the share 1"] * 3


def test_no_rank_is_said_to_be_missing_that_came_meanwhile(monkeypatch: pytest.MonkeyPatch) -> None:
    store, verdict = Store(), json.dumps({"record": {"rank": 0}, "came": 2})
    for key, value in (("1", "{}"), ("verdict", verdict), ("all read", "")):
        store.set(f"0/{key}", value)
    monkeypatch.setattr(agreeing, "comes", lambda *given: given[-1]())  # it takes long
    # A warning would be an error.
    assert agree(store, "0/", 0, [0, 1], {"rank": 0}, PATIENCE) == {"rank": 0}
