"""TarShards: any sample at any time."""

from __future__ import annotations

import os
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from support.made_shards import COPIES, ENDINGS, numbered, tar_bytes, write_numbered, write_shard

from threadloader.datasets import TarShards, open_files
from threadloader.errors import DataError


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Three shards of 21 samples; one is empty."""
    write_numbered(tmp_path, [8, 0, 13])
    return tmp_path


def test_samples_are_dicts_of_decoded_members(folder: Path) -> None:
    dataset = TarShards(folder / "shard-{000..002}.tar")
    expected = [
        {"__key__": key, "txt": parts["txt"].decode(), "cls": number, "bin": parts["bin"]}
        for number, (key, parts) in enumerate(numbered(0, 21).items())
    ]
    assert list(dataset) == [dataset[number] for number in range(21)] == expected
    assert len(dataset) == 21
    assert dataset[np.int64(-21)] == expected[0]
    for wrong in (21, -22):
        with pytest.raises(IndexError, match=f"index {wrong} is out of range: there are 21"):
            dataset[wrong]
    assert dataset.keys == list(numbered(0, 21))
    assert (
        TarShards(folder / "*.tar", decode=False)[5]
        == {"__key__": "00005"} | numbered(5, 6)["00005"]
    )
    told = f"TarShards: 21 samples in 3 shards, {folder / 'shard-000.tar'} to "
    assert repr(dataset) == f"{told}{folder / 'shard-002.tar'}"


def test_named_fields_make_tuples_of_the_first_alternative(folder: Path) -> None:
    dataset = TarShards(folder / "*.tar", fields=("json; .TXT", "__key__", ".cls ;txt"))
    assert dataset[9] == ("sample 9", "00009", 9)
    dataset = TarShards(folder / "*.tar", fields=("cls",), transform=lambda sample: [sample])
    assert dataset[9] == [(9,)]


def test_members_far_apart_are_read_each_by_itself(tmp_path: Path) -> None:
    middle = {"filler": bytes(1 << 20)}
    write_shard(tmp_path / "a.tar", {"0": {"a": b"first"} | middle | {"b": b"last"}})
    dataset = TarShards(tmp_path / "a.tar", fields=("a", "b"))
    tracemalloc.start()
    assert dataset[0] == (b"first", b"last")
    assert tracemalloc.get_traced_memory()[1] < 1 << 19
    tracemalloc.stop()


@pytest.mark.parametrize("ending", [ending for ending in ENDINGS if ending != ".tar"])
def test_a_compressed_shard_is_refused_with_what_to_do(tmp_path: Path, ending: str) -> None:
    write_numbered(tmp_path, [2], ending)
    with pytest.raises(ValueError, match=r"is compressed: .* by TarStream"):
        TarShards(tmp_path / f"*{ending}")


def test_a_shard_that_changes_while_it_is_in_use_is_an_error(folder: Path) -> None:
    dataset = TarShards(folder / "*.tar")
    assert dataset[20]["cls"] == 20  # the shard is open
    path = folder / "shard-002.tar"
    path.write_bytes(path.read_bytes()[:2000])
    for _ in range(2):
        with pytest.raises(
            DataError, match=r"shard-002\.tar: the file changed while it was in use"
        ):
            dataset[20]
        dataset.close()


@pytest.mark.parametrize("kept", COPIES)
def test_a_shard_that_was_replaced_since_its_index_was_read_is_an_error(
    tmp_path: Path, kept: Callable[[TarShards], TarShards]
) -> None:
    path, other = tmp_path / "a.tar", tmp_path / "b.tar"
    write_shard(path, {"0": {"txt": b"first"}, "1": {"txt": b"other"}})
    write_shard(other, {"1": {"txt": b"other"}, "0": {"txt": b"first"}})
    os.utime(path, (1e9, 1e9))
    dataset = TarShards(path)
    other.replace(path)
    with pytest.raises(DataError, match=r"changed .* make its dataset anew"):
        kept(dataset)[0]
    assert TarShards(path)[0] == {"__key__": "1", "txt": "other"}


def test_files_are_read_at_any_offset_and_as_streams(tmp_path: Path) -> None:
    (tmp_path / "a.bin").write_bytes(tar_bytes([("0.txt", b"x")]))
    (file,) = open_files([tmp_path / "a.bin"])
    assert (file.size(), file.read_at(512, 1)) == (10240, b"x")
    file.expect(file.stamp())
    with file.open() as stream:
        assert stream.read(5) == b"0.txt"
    with pytest.raises(DataError, match="the file ends at 10,240"):
        file.read_at(10_000, 1000)
    (tmp_path / "a.bin").write_bytes(b"changed")
    with pytest.raises(DataError, match="changed"):
        file.open()
    with pytest.raises(TypeError, match="unexpected 'retries'"):
        open_files([tmp_path / "a.bin"], retries=3)
