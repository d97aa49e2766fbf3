"""Rows of Parquet files: by number, in batches of few row groups, shared out, resumed, refused."""

from __future__ import annotations

import datetime as dt
import io
import itertools
import json
import random
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.remote_server import RemoteServer, serving

pytest.importorskip("pyarrow")

import pyarrow as pa
import pyarrow.parquet as pq

from threadloader import ThreadLoader
from threadloader.datasets import ParquetRows, decode_image
from threadloader.errors import DataError

ROWS, GROUP, SIZE = 1000, 96, 64  # the last group of each file, and the last batch, are smaller


def write(path: Path, table: Any, group: int = GROUP) -> Path:
    pq.write_table(table, path, row_group_size=group, compression="gzip")
    return path


def table_of(numbers: Iterable[int]) -> Any:
    y = np.array(list(numbers))
    return pa.table({"y": y, "x": y.astype(np.float32) / 2, "name": [str(each) for each in y]})


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for number, rows in enumerate(np.split(np.arange(ROWS), 2)):
        write(tmp_path / f"{number}.parquet", table_of(rows))
    return tmp_path


@pytest.fixture
def rows(folder: Path) -> ParquetRows:
    return ParquetRows(folder / "*.parquet")


def whole(rows: ParquetRows, threads: int = 0, **options: Any) -> ThreadLoader[Any]:
    sampler = rows.batches(SIZE, seed=3, **options.pop("order", {}))
    return ThreadLoader(rows, batch_size=None, sampler=sampler, threads=threads, **options)


def singly(rows: ParquetRows, threads: int) -> ThreadLoader[Any]:
    return ThreadLoader(rows, batch_sampler=rows.batches(SIZE, seed=3), threads=threads)


def targets(batches: Iterable[Any]) -> list[list[int]]:
    return [np.asarray(batch["y"]).tolist() for batch in batches]


def test_a_row_or_some_rows_are_a_dict_by_column(rows: ParquetRows) -> None:
    assert len(rows) == ROWS
    assert rows[7] == rows[7 - ROWS] == {"y": 7, "x": 3.5, "name": "7"}
    some = rows[[999, 0, 500]]
    assert {name: column.tolist() for name, column in some.items()} == {
        "y": [999, 0, 500],
        "x": [499.5, 0, 250],
        "name": ["999", "0", "500"],
    }
    assert some["x"].dtype == np.float32
    for index in (ROWS, -ROWS - 1, [0, ROWS]):
        with pytest.raises(IndexError, match="out of range"):
            rows[index]
    assert [len(column) for column in rows[[]].values()] == [0, 0, 0]
    for bad in (3.0, "y", [1.5], np.array([True, False]), np.zeros((2, 2), int)):
        with pytest.raises(TypeError, match="index"):
            rows[bad]


DAY = dt.datetime(2026, 11, 26)  # noqa: DTZ001  # as Arrow's without a zone
COLUMNS: dict[str, tuple[Any, Any]] = {  # a column of three rows, and what becomes of it
    "numbers": (pa.array([1, 2, 3], pa.int16()), np.array([1, 2, 3], np.int16)),
    "missing numbers": (pa.array([1, None, 3]), np.array([1, np.nan, 3])),
    "truth values": (pa.array([True, False, True]), np.array([True, False, True])),
    "times": (pa.array([DAY, None, DAY]), np.array([DAY, None, DAY], "M8[us]")),
    "categories": (pa.array(["a", "b", "a"]).dictionary_encode(), ["a", "b", "a"]),
    "vectors": (pa.array([[1, 2], [3, 4], [5, 6]]), np.array([[1, 2], [3, 4], [5, 6]])),
    "fixed": (
        pa.array([[1, 2], [3, 4], [5, 6]], pa.list_(pa.float32(), 2)),
        np.array([[1, 2], [3, 4], [5, 6]], np.float32),
    ),
    "matrices": (pa.array([[[1], [2]]] * 3), np.array([[[1], [2]]] * 3)),
    "ragged": (
        pa.array([[1], [], [2, 3]]),
        [np.array([1]), np.array([], np.int64), np.array([2, 3])],
    ),
    "missing lists": (pa.array([[1], None, [2]]), [np.array([1]), None, np.array([2])]),
    "records": (pa.array([{"a": 1}, None, {"a": 2}]), [{"a": 1}, None, {"a": 2}]),
    "missing truth": (pa.array([True, None, False]), [True, None, False]),
    "missing, and no exact floats": (pa.array([2**60 + 1, None, 3]), [2**60 + 1, None, 3]),
    "missing apart from these": (pa.array([2**60 + 1, 2, None]), [2**60 + 1, 2, None]),
}


@pytest.mark.parametrize("kind", COLUMNS)
def test_columns_are_arrays_where_they_can_be(tmp_path: Path, kind: str) -> None:
    column, expected = COLUMNS[kind]
    for group in (3, 2):  # with two groups they are put together again
        path = write(tmp_path / f"{group}.parquet", pa.table({"c": column}), group)
        found = ParquetRows(path)[[0, 1, 2]]["c"]
        if isinstance(expected, np.ndarray):
            np.testing.assert_array_equal(found, expected.astype(found.dtype))
            assert found.dtype.kind == expected.dtype.kind
        else:
            assert isinstance(found, list) == (kind in {"ragged", "missing lists"})
            assert list(map(repr, found)) == list(map(repr, expected))


@pytest.mark.parametrize("load", [whole, singly])
@pytest.mark.parametrize("threads", [0, 1, 2, 7])
def test_each_row_comes_once_an_epoch_in_an_order_that_follows_from_the_seed(
    rows: ParquetRows, threads: int, load: Callable[..., Any]
) -> None:
    loader, alone = load(rows, threads), whole(rows)
    epochs = []
    for _ in range(2):
        found = list(loader)
        assert len(found) == len(loader) == -(-ROWS // SIZE)
        assert [len(batch["y"]) for batch in found[:-1]] == [SIZE] * (len(found) - 1)
        for batch in found:
            y = np.asarray(batch["y"])
            np.testing.assert_array_equal(batch["x"], y.astype(np.float32) / 2)
            assert list(batch["name"]) == [str(each) for each in y]
        epochs.append(targets(found))
        assert sorted(itertools.chain(*epochs[-1])) == list(range(ROWS))
        assert epochs[-1] == targets(alone)
    assert epochs[0] != epochs[1]


def test_the_rows_of_several_groups_are_mixed_or_none(rows: ParquetRows) -> None:
    groups = {}
    for mix in (8, 1):
        found = targets(whole(rows, order={"mix": mix, "drop_last": True}))
        assert {len(batch) for batch in found} == {SIZE}
        groups[mix] = np.mean([len({(y // 500, y % 500 // GROUP) for y in b}) for b in found])
    assert groups[8] > 3
    assert groups[1] <= 2.5
    in_order = rows.batches(SIZE, shuffle=False)
    assert list(itertools.chain(*in_order)) == list(range(ROWS))


@pytest.mark.parametrize("threads", [0, 3])
@pytest.mark.parametrize("world", [1, 2])
def test_ranks_share_the_rows_and_go_on_at_the_next_batch(
    rows: ParquetRows, world: int, threads: int
) -> None:
    def load(rank: int, threads: int) -> ThreadLoader[Any]:
        share = {"shard": (rank, world), "uneven": "short", "seed": 3}
        return whole(rows, threads, order={"parts": world}, **share)

    seen = []
    for rank in range(world):
        all_of_rank = targets(load(rank, 0))
        stopped, resumed = load(rank, threads), load(rank, threads)
        begun = targets(itertools.islice(stopped, 3))
        resumed.load_state_dict(stopped.state_dict())
        assert begun + targets(resumed) == all_of_rank
        seen += itertools.chain(*all_of_rank)
        stopped.close()
    assert sorted(seen) == list(range(ROWS))


@pytest.fixture
def server(folder: Path) -> Iterator[RemoteServer]:
    pytest.importorskip("urllib3")
    with serving({f"/{each.name}": each.read_bytes() for each in folder.iterdir()}) as server:
        yield server


@pytest.mark.parametrize("world", [1, 2])
def test_each_group_is_read_once_by_one_rank(server: RemoteServer, world: int) -> None:
    groups = 2 * -(-500 // GROUP)
    for rank in range(world):
        rows = ParquetRows(server.url("/{0,1}.parquet?secret"), columns=["y", "name"])
        before = len(server.requests)
        share = {"shard": (rank, world), "uneven": "short"}
        found = targets(whole(rows, 4, order={"mix": world, "parts": world}, **share))
        assert sum(map(len, found)) >= ROWS // world - SIZE
        # The last batches have what all parts had left: of their last two groups.
        assert len(server.requests) - before <= groups // world + 2 * (world - 1)
        rows.close()


def test_row_groups_that_can_t_pass_the_filter_are_left_out(folder: Path) -> None:
    expression = pa.compute.field("y") >= 980
    for group_filter in ([("y", ">=", 980)], expression):
        rows = ParquetRows(folder / "*.parquet", columns=["y"], group_filter=group_filter)
        assert rows[range(len(rows))]["y"].tolist() == list(range(980, ROWS))
    assert len(ParquetRows(folder / "*.parquet", group_filter=[("y", "<", 0)])) == 0


def png(shade: int, size: int = 2) -> bytes:
    image = pytest.importorskip("PIL.Image")
    file = io.BytesIO()
    image.new("RGB", (size, size), (shade,) * 3).save(file, "PNG")
    return file.getvalue()


def pictures(path: Path, *found: Any) -> Path:
    kind = pa.struct({"bytes": pa.binary(), "path": pa.string()})
    features = {"info": {"features": {"image": {"_type": "Image"}, "other": {"_type": "Value"}}}}
    table = pa.table({"image": pa.array(found, kind), "other": pa.array([b"7"] * len(found))})
    return write(path, table.replace_schema_metadata({"huggingface": json.dumps(features)}))


def test_images_are_decoded_and_other_bytes_by_a_function_of_yours(tmp_path: Path) -> None:
    path = pictures(tmp_path / "a", *({"bytes": png(shade)} for shade in (1, 2, 3)))
    rows = ParquetRows(path, decode={"other": int})
    assert rows[1]["image"].tolist() == [[[2] * 3] * 2] * 2
    batch = rows[[2, 0]]
    assert batch["image"].shape == (2, 2, 2, 3)
    assert batch["other"].tolist() == [7, 7]
    assert ParquetRows(path, decode=False)[1]["image"]["bytes"] == png(2)
    large = ParquetRows(path, decode={"image": lambda data: decode_image(data, size=(4, 5))})
    assert large[0]["image"].shape == (4, 5, 3)
    mixed = pictures(tmp_path / "b", {"bytes": png(1)}, {"bytes": png(2, 3)}, None)
    assert [np.shape(each) for each in ParquetRows(mixed)[[0, 1, 2]]["image"]] == [
        (2, 2, 3),
        (3, 3, 3),
        (),
    ]


def test_a_transform_gets_a_row_or_some(folder: Path) -> None:
    rows = ParquetRows(folder / "*.parquet", columns=["x", "y"], transform=lambda row: row["y"] + 1)
    assert rows[3] == 4
    assert rows[[3, 5]].tolist() == [4, 6]


def damaged(path: Path) -> None:
    """Overwrite the second group."""
    data = bytearray(path.read_bytes())
    at = pq.read_metadata(path).row_group(1).column(0).data_page_offset
    data[at : at + 40] = bytes(40)
    path.write_bytes(data)


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-9])


BAD: dict[str, tuple[Callable[[Path], object], str]] = {  # what becomes of a file, and the error
    "cut short": (cut, "opened"),
    "no Parquet": (lambda path: path.write_bytes(b"x" * 99), "opened"),
    "empty": (lambda path: path.write_bytes(b""), "opened"),
    "another type": (lambda path: write(path, pa.table({"y": ["a"]})), "'y' is of string"),
    "no such column": (lambda path: write(path, pa.table({"x": [1]})), "no column 'y'"),
    "two of a name": (
        lambda path: write(path, pa.Table.from_arrays([pa.array([1])] * 2, ["y", "y"])),
        "more than one column 'y'",
    ),
    "a damaged group": (damaged, "row group 1"),
}


@pytest.mark.parametrize("case", BAD)
def test_a_bad_file_is_an_error_that_names_it(folder: Path, case: str) -> None:
    damage, told = BAD[case]
    damage(folder / "1.parquet")
    with pytest.raises(DataError, match=rf"1\.parquet.*{told}"):
        list(whole(ParquetRows(folder / "*.parquet", columns=["y"]), 2))


def test_a_flipped_byte_in_a_footer_is_an_error_or_nothing(tmp_path: Path) -> None:
    draw = random.Random(17)
    columns = {"y": range(90), "name": list(map(str, range(90))), "list": [[1, 2]] * 90}
    good = write(tmp_path / "good.parquet", pa.table(columns), 30).read_bytes()
    size, found = int.from_bytes(good[-8:-4], "little"), set[str]()
    for number in range(200):
        bad = bytearray(good)
        bad[len(bad) - 9 - draw.randrange(size)] = draw.randrange(256)
        path = tmp_path / f"{number}.parquet"
        path.write_bytes(bad)
        try:
            rows = ParquetRows(path)
            rows[[0, len(rows) - 1]]
            found.add("right")
        except DataError:
            found.add("error")
    assert found == {"right", "error"}


def test_a_file_that_is_written_into_while_it_is_in_use_is_an_error(folder: Path) -> None:
    rows = ParquetRows(folder / "*.parquet")
    assert rows[0]["y"] == 0
    data = (folder / "0.parquet").read_bytes()
    (folder / "0.parquet").write_bytes(data[:-1] + data[-1:])  # in place, of the same size
    with pytest.raises(DataError, match=r"0\.parquet: the file changed while it was in use"):
        rows[len(rows) // 2 - 1]


def test_wrong_names_and_numbers_are_refused(folder: Path) -> None:
    pattern = folder / "*.parquet"
    with pytest.raises(TypeError, match="columns must be a list of names, but got 'y'"):
        ParquetRows(pattern, columns="y")
    with pytest.raises(ValueError, match="decode= has 'z', which is none of the columns"):
        ParquetRows(pattern, decode={"z": bytes.decode})
    with pytest.raises(TypeError, match=r"size must be a whole number, but got 2\.5"):
        ParquetRows(pattern).batches(2.5)  # type: ignore[arg-type]


def test_errors_name_column_filter_row_and_no_secret(server: RemoteServer, tmp_path: Path) -> None:
    url = server.url("/0.parquet?signature=secret")
    bad, absent = pictures(tmp_path / "a", {"bytes": b"?"}), pictures(tmp_path / "b", {"path": "c"})
    wrong: list[tuple[Callable[[], object], str]] = [
        (lambda: ParquetRows(url, columns=["z"]), "no column 'z': 'y', 'x', 'name'"),
        (lambda: ParquetRows(url, group_filter=[("z", ">", 1)]), "z"),
        (lambda: ParquetRows(bad)[0], "row 0 of row group 0, column 'image'.*no image"),
        (lambda: ParquetRows(absent)[[0]], "its bytes are not in the file: .*'path': 'c'"),
    ]
    for make, told in wrong:
        with pytest.raises(DataError, match=told) as caught:
            make()
        assert "secret" not in str(caught.value)
    rows = ParquetRows(pictures(tmp_path / "c", {"bytes": b""}), decode={"other": {}.__getitem__})
    with pytest.raises(KeyError) as own:
        rows[0]
    assert "row 0 of row group 0, column 'other'" in own.value.__notes__[0]


def test_a_file_that_changes_in_the_midst_of_an_epoch_is_an_error(server: RemoteServer) -> None:
    server.etags = dict.fromkeys(server.files, '"one"')
    rows = ParquetRows(server.url("/{0,1}.parquet"))
    batches = iter(whole(rows, order={"mix": 1}))
    next(batches)
    server.etags = dict.fromkeys(server.files, '"another"')
    with pytest.raises(DataError, match=r"[01]\.parquet.*changed while it was in use"):
        list(batches)
    rows.close()


def test_without_pyarrow_the_error_says_what_to_install(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delitem(sys.modules, "threadloader.datasets._parquet.groups", raising=False)
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(ModuleNotFoundError, match="extra: parquet"):
        ParquetRows(folder / "*.parquet")
