"""Ranks wait for one another before their first batch, and nobody is blamed who came."""

from __future__ import annotations

import json

import pytest
from support.patience import PATIENCE
from support.rank_threads import Store

from threadloader._order import agreeing
from threadloader._order.agreeing import agree


def test_no_rank_is_said_to_be_missing_that_came_meanwhile(monkeypatch: pytest.MonkeyPatch) -> None:
    store, verdict = Store(), json.dumps({"record": {"rank": 0}, "came": 2})
    for key, value in (("1", "{}"), ("verdict", verdict), ("all read", "")):
        store.set(f"0/{key}", value)
    monkeypatch.setattr(agreeing, "comes", lambda *given: given[-1]())  # it takes long
    # A warning would be an error.
    assert agree(store, "0/", 0, [0, 1], {"rank": 0}, PATIENCE) == {"rank": 0}
