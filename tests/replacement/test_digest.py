"""The digest of a batch: equal for equal batches, and for no others."""

from __future__ import annotations

from collections import OrderedDict, UserDict
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")

import torch

from threadloader._replacement.digest import digest


class Own:
    def __init__(self, value: Any) -> None:
        self.value = value
        self.itself = self


def batches() -> list[Any]:
    return [
        1,
        1.0,
        True,
        "1",
        b"1",
        None,
        [1, 2],
        (1, 2),
        [[1], 2],
        {"a": 1},
        {"a": 2},
        OrderedDict(a=1),
        UserDict(a=1),
        torch.ones(4),
        torch.ones(2, 2),
        torch.ones(4).double(),
        torch.ones(4).bfloat16(),
        torch.arange(4.0).view(2, 2),
        torch.arange(4.0).view(2, 2).T,
        torch.eye(2).to_sparse(),
        torch.tensor(1),
        np.ones(4),
        np.array(["a", None], dtype=object),
        Own(torch.ones(1)),
        Own(torch.zeros(1)),
    ]


def test_equal_batches_have_equal_digests_and_others_do_not() -> None:
    first, second = [digest(batch) for batch in batches()], [digest(batch) for batch in batches()]
    assert first == second
    assert len(set(first)) == len(first)
