"""An index is built once, kept, and built again when it does not fit its shard any more."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.made_shards import numbered, write_numbered, write_shard

from threadloader.datasets import TarShards
from threadloader.datasets._record import packed, unpacked


def without_sizes(data: bytes) -> bytes:
    index = unpacked(0, data)
    del index["sizes"]
    return packed(0, index)


DAMAGES: dict[str, Callable[[bytes], bytes]] = {
    "half": lambda data: data[: len(data) // 2],
    "another file": lambda _: b"no index at all",
    "another version": lambda data: packed(0, unpacked(0, data) | {"version": 1}),
    "an array is missing": without_sizes,
    "flipped bit": lambda data: data[:200] + bytes([data[200] ^ 1]) + data[201:],
}


@pytest.fixture
def shard(tmp_path: Path) -> Path:
    return write_numbered(tmp_path, [6])[0]


@pytest.fixture
def builds(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Get the paths of the shards whose index is built, one after the other."""
    built: list[str] = []
    build = TarShards.build_index

    def counting(dataset: TarShards, file: Any) -> Any:
        built.append(file.path)
        return build(dataset, file)

    monkeypatch.setattr(TarShards, "build_index", counting)
    return built


def samples(path: Path, folder: Path | None = None) -> dict[str, Any]:
    dataset = TarShards(path, decode=False, index_folder=folder)
    return {sample.pop("__key__"): sample for sample in dataset}


def test_it_is_built_once_and_kept_beside_the_shard(shard: Path, builds: list[str]) -> None:
    assert samples(shard) == samples(shard) == numbered(0, 6)
    assert len(builds) == 1
    assert sorted(path.suffix for path in shard.parent.iterdir()) == [".tar", ".tlindex"]


@pytest.mark.parametrize("change", ["content", "time"])
def test_a_shard_that_was_written_again_is_read_again(
    shard: Path, builds: list[str], change: str
) -> None:
    samples(shard)
    if change == "content":
        write_shard(shard, numbered(10, 13))
    else:
        status = shard.stat()
        os.utime(shard, ns=(status.st_atime_ns, status.st_mtime_ns + 1_000_000))
    assert samples(shard) == (numbered(10, 13) if change == "content" else numbered(0, 6))
    assert len(builds) == 2


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=list(DAMAGES))
def test_a_damaged_index_is_built_again(shard: Path, builds: list[str], damage: Any) -> None:
    samples(shard)
    place = Path(f"{shard}.tlindex")
    place.write_bytes(damage(place.read_bytes()))
    for _ in range(2):  # and was kept
        assert samples(shard) == numbered(0, 6)
        assert len(builds) == 2


def test_where_the_folder_can_t_be_written_the_user_s_cache_folder_has_it(
    shard: Path, monkeypatch: pytest.MonkeyPatch, builds: list[str]
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(shard.parent / "cache"))
    Path(f"{shard}.tlindex").mkdir()  # also root can't write a file there
    assert samples(shard) == samples(shard) == numbered(0, 6)
    assert len(builds) == 1
    assert len(list((shard.parent / "cache" / "threadloader" / "shards").iterdir())) == 1


def test_where_nothing_can_be_written_it_is_built_each_time(
    shard: Path, tmp_path: Path, builds: list[str]
) -> None:
    (tmp_path / "file").touch()
    for _ in range(2):
        assert samples(shard, tmp_path / "file" / "below") == numbered(0, 6)
    assert len(builds) == 2


def test_shards_of_one_name_share_a_folder_for_indexes(tmp_path: Path, builds: list[str]) -> None:
    paths = []
    for number in range(2):
        (tmp_path / str(number)).mkdir()
        paths += write_numbered(tmp_path / str(number), [number + 1])
    kept = tmp_path / "kept"
    assert [len(samples(path, kept)) for path in paths * 2] == [1, 2, 1, 2]
    assert len(builds) == 2
    assert not [path for path in tmp_path.rglob("*.tlindex") if path.parent != kept]
