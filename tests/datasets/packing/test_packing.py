"""pack: every sequence in one row, whole, few places left, resumed anywhere."""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import islice
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.acting import Acting
from support.pictures import picture
from support.resuming import Cursor, as_json, check_each_state

from threadloader import StateError, ThreadLoader, get_worker_info, pack

LENGTHS = np.clip(np.random.default_rng(0).lognormal(5, 1, 20_000), 16, 1024).astype(int)
lengths_of_samples = st.lists(st.integers(0, 20), max_size=60)


def sequences(lengths: Any) -> list[np.ndarray]:
    """Return arrays whose items are all different, from 1 on."""
    ends = np.cumsum(lengths)
    return [np.arange(end - size + 1, end + 1) for size, end in zip(lengths, ends, strict=True)]


def same(rows: list[dict[str, Any]], others: list[dict[str, Any]]) -> bool:
    return picture(rows) == picture(others)


def unpacked(rows: list[dict[str, Any]], name: str = "input_ids") -> list[list[int]]:
    """Return the sequences in rows."""
    return [
        row[name][row["segment_ids"] == number].tolist()
        for row in rows
        for number in range(1, row["segment_ids"].max() + 1)
    ]


class Source:
    """An iterable whose own state says where it is, and which counts its passes.

    Args:
        lengths: Of its samples.
    """

    def __init__(self, lengths: Any) -> None:
        self.samples = sequences(lengths)
        self.at = self.start = self.passes = self.read = 0

    def __iter__(self) -> Iterator[np.ndarray]:
        self.at, self.start = self.start, 0
        while self.at < len(self.samples):
            self.at += 1
            self.read += 1
            yield self.samples[self.at - 1] + 10_000 * self.passes
        self.at, self.passes = 0, self.passes + 1

    def state_dict(self) -> dict[str, int]:
        return {"at": self.at, "passes": self.passes}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.start, self.passes = state["at"], state["passes"]


class SourceOfIterators:
    """An iterable whose iterator has the state."""

    def __init__(self, lengths: Any) -> None:
        self.samples = sequences(lengths)

    def __iter__(self) -> Cursor:
        return Cursor(self.samples)


def iterator(lengths: Any) -> Cursor:
    """Return a source that is its own iterator."""
    return Cursor(sequences(lengths))


of_many_passes = [sequences, Source, SourceOfIterators]
each_source = pytest.mark.parametrize("source", [*of_many_passes, iterator])
each_source_of_many_passes = pytest.mark.parametrize("source", of_many_passes)


@given(lengths_of_samples, st.integers(1, 40), st.integers(20, 50))
def test_every_sequence_is_in_one_row_and_whole(
    lengths: list[int], window: int, length: int
) -> None:
    samples = sequences(lengths)
    rows = list(pack(samples, length, window=window))
    expected = [sample.tolist() for sample in samples if len(sample)]
    assert sorted(unpacked(rows)) == expected
    for row in rows:
        places = row["segment_ids"] > 0
        assert {len(array) for array in row.values()} == {length}
        assert not row["input_ids"][~places].any()
        assert not row["position_ids"][~places].any()
        starts = np.flatnonzero(np.diff(row["segment_ids"], prepend=0) * places)
        assert not row["position_ids"][starts].any()
        rises = np.diff(row["position_ids"])[np.diff(row["segment_ids"]) == 0]
        assert set(rises[: places.sum() - len(starts)]) <= {1}


@each_source
@pytest.mark.parametrize("stop", [1, 33, 200])
def test_packing_goes_on_from_any_row_and_can_be_saved_again_at_once_and_later(
    source: Any, stop: int
) -> None:
    rows = list(pack(source(LENGTHS[:3000]), 1024))
    saved = pack(source(LENGTHS[:3000]), 1024)
    list(islice(saved, stop))
    for more in (0, 1, 64):
        state = as_json(saved.state_dict())
        saved = pack(source(LENGTHS[:3000]), 1024)
        saved.load_state_dict(state)
        assert as_json(saved.state_dict()) == state
        assert same(list(islice(saved, more)), rows[stop : stop + more])
        stop += more


def test_little_of_the_rows_is_padding_and_no_sequence_waits_for_long() -> None:
    rows = sum(1 for _ in pack(sequences(LENGTHS), 2048))
    assert 1 - LENGTHS.sum() / (rows * 2048) < 0.007
    # 60 of 100 places, then samples that never fit beside them.
    samples = sequences([60] + [70] * 100)
    assert next(iter(pack(samples, 100, window=8)))["input_ids"][0] == 1
    assert [len(list(pack(sequences([3, 4, 2]), 5, window=rows))) for rows in (1, 2)] == [3, 2]


def test_a_state_has_few_bytes_and_few_samples_are_read_again() -> None:
    saved = pack(Source(LENGTHS), 2048)
    for rows, _ in enumerate(islice(saved, 900)):
        state = saved.state_dict()
        assert len(json.dumps(state)) < 400, rows
    source = Source(LENGTHS)
    resumed = pack(source, 2048)
    resumed.load_state_dict(state)
    next(iter(resumed))
    assert source.read < 600


def test_features_are_chosen_and_packed_together_and_may_be_arrays_lists_or_tensors() -> None:
    samples = [
        {"input_ids": np.array([5, 6, 7]), "labels": [1, 2, 3], "text": "ab"},
        {"input_ids": np.array([8]), "labels": [4], "position_ids": [7]},
    ]
    (row,) = pack(samples, 6, features=["input_ids", "labels"])
    assert {name: array.tolist() for name, array in row.items()} == {
        "input_ids": [5, 6, 7, 8, 0, 0],
        "labels": [1, 2, 3, 4, -100, -100],
        "position_ids": [0, 1, 2, 0, 0, 0],
        "segment_ids": [1, 1, 1, 2, 0, 0],
    }
    (row,) = pack([np.ones((3, 2), np.float32), np.full((1, 2), 2, np.float32)], 5)
    assert row["input_ids"].dtype == np.float32
    assert row["input_ids"].tolist() == [[1, 1], [1, 1], [1, 1], [2, 2], [0, 0]]
    torch = pytest.importorskip("torch")
    (row,) = pack([torch.tensor([1, 2]), [3]], 4)
    assert row["input_ids"].tolist() == [1, 2, 3, 0]


@pytest.mark.parametrize(
    ("too_long", "expected"),
    [
        ("truncate", [[1, 2, 3, 4], [5]]),
        ("split", [[1, 2, 3, 4], [5, 6, 7, 8], [9], [5]]),
        ("drop", [[5]]),
    ],
)
def test_what_becomes_of_a_sample_that_is_too_long_is_chosen(
    too_long: Any, expected: list[list[int]]
) -> None:
    rows = list(pack([np.arange(1, 10), np.array([5])], 4, too_long=too_long))
    assert sorted(unpacked(rows)) == sorted(expected)


class Hiccups(Cursor):
    """Every tenth sample can't be read, and every 25th is too long; neither is given."""

    def __next__(self) -> np.ndarray:
        sample = super().__next__()
        if self.at % 10 == 0:
            raise OSError
        return np.ones(9999, int) if self.at % 25 == 0 else sample


class SourceOfHiccups(SourceOfIterators):
    def __iter__(self) -> Hiccups:
        return Hiccups(self.samples)


def rows_of(packed: Any) -> Iterator[dict[str, Any]]:
    """Yield rows; errors are passed over."""
    rows = iter(packed)
    while True:
        try:
            yield next(rows)
        except (OSError, ValueError):
            continue
        except StopIteration:
            return


@pytest.mark.parametrize("stop", [1, 5, 40])
def test_after_an_error_packing_goes_on_and_so_does_a_resumed_one(stop: int) -> None:
    rows = list(rows_of(pack(SourceOfHiccups(LENGTHS[:600]), 1024, window=4)))
    numbered = enumerate(sequences(LENGTHS[:600]), 1)
    expected = [sequence.tolist() for at, sequence in numbered if at % 10 and at % 25]
    assert sorted(unpacked(rows)) == expected
    saved = pack(SourceOfHiccups(LENGTHS[:600]), 1024, window=4)
    list(islice(rows_of(saved), stop))
    resumed = pack(SourceOfHiccups(LENGTHS[:600]), 1024, window=4)
    resumed.load_state_dict(as_json(saved.state_dict()))
    assert same(list(rows_of(resumed)), rows[stop:])


@pytest.mark.parametrize(
    ("samples", "error", "message"),
    [
        ([7], TypeError, "input_ids of sample 0 is no sequence of numbers, but a int"),
        ([{"a": [1], "b": "x"}], TypeError, r"b of sample 0 is no sequence .* features=\[...\]"),
        ([{"labels": [1]}, {"a": [1]}], KeyError, "sample 1 has no labels: it has a"),
        ([[1]], TypeError, "sample 0 is no mapping: it has no features labels"),
        (
            [{"a": [1, 2], "b": [3]}],
            ValueError,
            r"differ in length \(a 2, b 1\): choose .*features=",
        ),
        ([{"a": [1], "segment_ids": [1]}], ValueError, "sample 0 has segment_ids, as a row does"),
        ([{}], ValueError, "sample 0 is empty"),
        ([[1] * 30], ValueError, "sample 0 has length 30, more than a row's 4: .*split"),
        ([np.ones((1, 2)), np.ones((1, 3))], ValueError, r"different shapes: \[\(2,\), \(3,\)\]"),
        ([[1], [[1], [2, 3]]], ValueError, "inhomogeneous"),
    ],
)
def test_what_can_not_be_packed_is_refused(samples: Any, error: Any, message: str) -> None:
    features = ["labels"] if "labels" in message else None
    with pytest.raises(error, match=message) as caught:
        list(pack(samples, 4, features=features))
    assert message != "inhomogeneous" or caught.value.__notes__ == ["in input_ids of sample 1"]


@pytest.mark.parametrize(
    ("dtype", "padding", "fits"),
    [
        (np.uint8, -100, False),
        (np.int64, np.nan, False),
        (np.int8, -100, True),
        (np.float32, np.nan, True),
    ],
)
def test_padding_must_be_a_value_of_its_feature(dtype: Any, padding: float, fits: bool) -> None:
    packed = pack([{"labels": np.ones(2, dtype)}], 3, padding={"labels": padding})
    if fits:
        (row,) = packed
        assert np.array_equal(row["labels"], np.array([1, 1, padding], dtype), equal_nan=True)
    else:
        with pytest.raises(ValueError, match=r"labels has type u?int\d+, which can't hold its pad"):
            list(packed)


def test_a_map_style_dataset_is_packed_through_a_loader() -> None:
    dataset = Acting(9, sample=lambda index: np.full(index + 1, index))
    with pytest.raises(TypeError, match=r"pack\(ThreadLoader\(dataset, batch_size=None"):
        pack(dataset, 9)  # type: ignore[arg-type]
    samples = ThreadLoader(dataset, batch_size=None, shuffle=True, seed=1)
    rows = list(pack(samples, 9))
    assert sorted(map(len, unpacked(rows))) == list(range(1, 10))


@pytest.mark.parametrize("name", ["length", "window", "version"])
def test_the_state_of_other_rows_and_an_incomplete_one_are_refused(name: str) -> None:
    packed = pack(Source([3, 4, 4]), 5)
    next(iter(packed))
    state = packed.state_dict()
    with pytest.raises(StateError, match=name):
        packed.load_state_dict({**state, name: 7})
    for missing in ("source", "at", "free", "drawn", "items", "rows", "window"):
        part = {name: value for name, value in state.items() if name != missing}
        with pytest.raises(StateError, match=f"the state is incomplete: it has no {missing}"):
            packed.load_state_dict(part)


@each_source
def test_a_source_that_gives_other_samples_than_before_is_refused(source: Any) -> None:
    saved = pack(source(LENGTHS[:500]), 1024, window=4)
    list(islice(saved, 20))
    other = pack(source(LENGTHS[500:1000]), 1024, window=4)
    other.load_state_dict(saved.state_dict())
    with pytest.raises(StateError, match="the source gives other samples"):
        next(iter(other))


@each_source_of_many_passes
@pytest.mark.filterwarnings("ignore:the state holds none")
def test_a_loader_goes_on_in_the_middle_of_an_epoch_and_between_two(source: Any) -> None:
    check_each_state(
        lambda: ThreadLoader(pack(source(LENGTHS[:150]), 1024, window=8), 8, collate_fn=repr)
    )


def test_replicas_of_torchs_iterable_datasets_pack_their_own_shares() -> None:
    data = pytest.importorskip("torch.utils.data")

    class Shares(data.IterableDataset):  # type: ignore[misc, name-defined]
        def __iter__(self) -> Iterator[np.ndarray]:
            info = get_worker_info()
            assert info is not None
            yield from sequences(LENGTHS[:600])[info.id :: info.num_workers]

    loader = ThreadLoader(pack(Shares(), 1024), batch_size=None, num_workers=2, output="numpy")
    rows = list(loader)
    expected = [sample.tolist() for sample in sequences(LENGTHS[:600])]
    assert sorted(unpacked(rows)) == expected
    assert isinstance(loader.dataset, data.IterableDataset)
