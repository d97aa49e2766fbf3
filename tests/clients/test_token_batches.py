"""TokenBatches and pack over datasets of Hugging Face, and ranks of Accelerate."""

from __future__ import annotations

import json
from itertools import islice
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from threadloader import ThreadLoader, TokenBatches, pack

if TYPE_CHECKING:
    from collections.abc import Iterator

LENGTHS = np.random.default_rng(0).integers(5, 200, 600)


@pytest.fixture(name="texts")
def _texts() -> Any:
    datasets = pytest.importorskip("datasets.arrow_dataset")  # "datasets" may be a folder of tests
    rows = [list(range(length)) for length in LENGTHS.tolist()]
    names = [f"text {number}" for number in range(len(rows))]
    columns = {"input_ids": rows, "length": LENGTHS.tolist(), "name": names}
    return datasets.Dataset.from_dict(columns)


def test_a_column_has_the_lengths(texts: Any) -> None:
    loader = ThreadLoader(
        texts,
        batch_sampler=TokenBatches(texts["length"], 4096),
        collate_fn=lambda samples: [len(sample["input_ids"]) for sample in samples],
    )
    batches = list(loader)
    assert sorted(length for batch in batches for length in batch) == sorted(LENGTHS.tolist())
    assert max(len(batch) * max(batch) for batch in batches) <= 4096


@pytest.mark.parametrize("streamed", [False, True])
def test_a_dataset_and_its_stream_are_packed_and_resumed(texts: Any, *, streamed: bool) -> None:
    def rows() -> Any:
        source = texts.to_iterable_dataset() if streamed else texts
        return pack(source, 512, features=["input_ids"])

    expected = [row["input_ids"].tolist() for row in rows()]
    saved = rows()
    begun = [row["input_ids"].tolist() for row in islice(saved, 40)]
    state = json.dumps(saved.state_dict())
    assert len(state) < 700
    resumed = rows()
    resumed.load_state_dict(json.loads(state))
    assert begun + [row["input_ids"].tolist() for row in resumed] == expected


def test_accelerates_ranks_take_batches_in_turn() -> None:
    accelerate = pytest.importorskip("accelerate.data_loader")

    def shares() -> Iterator[list[list[int]]]:
        for rank in range(2):
            batches = TokenBatches(LENGTHS, 1024)
            yield list(accelerate.BatchSamplerShard(batches, 2, rank, even_batches=False))

    one, other = shares()
    taken = [batch for step in zip(one, other, strict=False) for batch in step]
    expected = list(TokenBatches(LENGTHS, 1024))
    assert taken == expected[: len(taken)]
    assert len(taken) >= len(expected) - 1
