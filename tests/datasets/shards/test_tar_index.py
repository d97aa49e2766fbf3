"""An index is built once, kept, and built again when it does not fit its shard any more."""

from __future__ import annotations

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest
from support.made_shards import numbered, tar_bytes, write_numbered, write_shard

from threadloader.datasets._local_file import LocalFile
from threadloader.datasets._shards import index
from threadloader.datasets._shards.index import build_index, cache_folder, open_index
from threadloader.datasets._shards.index_file import ShardIndex, save_index
from threadloader.errors import DataError

DAMAGES: dict[str, Any] = {
    "empty": lambda _: b"",
    "end missing": lambda data: data[:-40],
    "half": lambda data: data[: len(data) // 2],
    "another file": lambda _: b"no index at all",
    "line missing": lambda data: data.partition(b"\n")[2],
    "flipped bit": lambda data: data[:600] + bytes([data[600] ^ 1]) + data[601:],
}
each_damage = pytest.mark.parametrize("damage", DAMAGES.values(), ids=list(DAMAGES))


@pytest.fixture
def shard(tmp_path: Path) -> Path:
    return write_numbered(tmp_path, [6])[0]


def opened(path: Path, folder: Path | None = None) -> ShardIndex:
    return open_index(LocalFile(path), str(path), folder)


def told(index: ShardIndex) -> list[Any]:
    return [(index.key(row), index.members(row)) for row in range(len(index))]


class Builds:
    """Counts how often an index was built."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.count = 0
        build = index.build_index

        def counting(*args: Any) -> ShardIndex:
            self.count += 1
            return build(*args)

        monkeypatch.setattr(index, "build_index", counting)


@pytest.fixture
def builds(monkeypatch: pytest.MonkeyPatch) -> Builds:
    return Builds(monkeypatch)


def test_an_index_tells_where_each_member_is(shard: Path) -> None:
    index = opened(shard)
    data = shard.read_bytes()
    found = {
        key: {ext: data[part.offset : part.offset + part.size] for ext, part in parts.items()}
        for key, parts in told(index)
    }
    assert found == numbered(0, 6)


def test_it_is_built_once_and_kept_beside_the_shard(shard: Path, builds: Builds) -> None:
    first = opened(shard)
    assert (shard.parent / "shard-000.tar.tlindex").exists()
    assert told(opened(shard)) == told(first)
    assert builds.count == 1
    assert sorted(path.suffix for path in shard.parent.iterdir()) == [".tar", ".tlindex"]


def test_a_shard_that_was_written_again_is_read_again(shard: Path, builds: Builds) -> None:
    opened(shard)
    write_shard(shard, numbered(10, 13))
    assert [key for key, _ in told(opened(shard))] == ["00010", "00011", "00012"]
    assert builds.count == 2


def test_a_shard_of_the_same_size_but_another_time_is_read_again(
    shard: Path, builds: Builds
) -> None:
    opened(shard)
    status = shard.stat()
    os.utime(shard, ns=(status.st_atime_ns, status.st_mtime_ns + 1_000_000))
    opened(shard)
    assert builds.count == 2


@each_damage
def test_a_damaged_index_is_built_again(shard: Path, builds: Builds, damage: Any) -> None:
    expected = told(opened(shard))
    place = Path(f"{shard}.tlindex")
    place.write_bytes(damage(place.read_bytes()))
    assert told(opened(shard)) == expected
    assert builds.count == 2
    opened(shard)
    assert builds.count == 2  # and was kept


def test_flipped_bits_are_noticed_or_of_no_account(shard: Path) -> None:
    expected = told(opened(shard))
    place = Path(f"{shard}.tlindex")
    whole = place.read_bytes()
    rng = Random(7)
    for _ in range(300):
        data = bytearray(whole)
        for _ in range(rng.randint(1, 4)):
            data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
        place.write_bytes(data)
        assert told(opened(shard)) == expected


@pytest.mark.parametrize(
    "wrong",
    [
        {"offsets": np.array([10**12] * 18)},
        {"offsets": np.array([-1] * 18)},
        {"sizes": np.array([2**62] * 18)},
        {"sizes": np.zeros(17, np.int64)},
        {"kinds": np.array([3] * 18, np.int32)},
        {"extensions": ("a",)},
        {"member_ends": np.array([3, 6, 9, 12, 15, 19])},
        {"member_ends": np.array([3, 6, 9, 9, 15, 18])},
        {"key_ends": np.array([5, 10, 15, 20, 25, 31])},
        {"key_ends": np.zeros(5, np.int64)},
        {"key_ends": np.zeros(0, np.int64), "member_ends": np.zeros(0, np.int64)},
    ],
    ids=str,
)
def test_an_index_that_somebody_else_wrote_is_not_trusted(
    shard: Path, builds: Builds, wrong: dict[str, Any]
) -> None:
    index = opened(shard)
    save_index(replace(index, **wrong), Path(f"{shard}.tlindex"))
    assert told(opened(shard)) == told(index)
    assert builds.count == 2


def test_an_index_of_another_version_is_built_again(shard: Path, builds: Builds) -> None:
    opened(shard)
    place = Path(f"{shard}.tlindex")
    place.write_bytes(place.read_bytes().replace(b"index 2", b"index 1"))
    opened(shard)
    assert builds.count == 2


def test_where_the_folder_can_t_be_written_the_cache_folder_has_it(
    shard: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, builds: Builds
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(sys, "platform", "linux")
    Path(f"{shard}.tlindex").mkdir()  # also root can't write a file there
    opened(shard)
    opened(shard)
    assert builds.count == 1
    assert len(list((tmp_path / "cache" / "threadloader" / "shards").iterdir())) == 1


def test_where_nothing_can_be_written_it_is_built_each_time(
    shard: Path, tmp_path: Path, builds: Builds
) -> None:
    (tmp_path / "file").touch()
    folder = tmp_path / "file" / "below"
    assert told(opened(shard, folder)) == told(opened(shard, folder))
    assert builds.count == 2


def test_shards_of_one_name_share_a_folder_for_indexes(tmp_path: Path, builds: Builds) -> None:
    paths = []
    for number in range(2):
        (tmp_path / str(number)).mkdir()
        paths += write_numbered(tmp_path / str(number), [number + 1])
    kept = tmp_path / "kept"
    assert [len(opened(path, kept)) for path in paths * 2] == [1, 2, 1, 2]
    assert builds.count == 2
    assert not [path for path in tmp_path.rglob("*.tlindex") if path.parent != kept]


@pytest.mark.parametrize(
    ("platform", "variable", "place"),
    [
        ("linux", "XDG_CACHE_HOME", ("threadloader", "shards")),
        ("win32", "LOCALAPPDATA", ("threadloader", "shards")),
        ("darwin", "HOME", ("Library", "Caches", "threadloader", "shards")),
    ],
)
def test_the_cache_folder_is_the_platform_s(
    platform: str, variable: str, place: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "platform", platform)
    monkeypatch.setenv(variable, str(tmp_path))
    assert cache_folder() == tmp_path.joinpath(*place)


@pytest.mark.parallel
def test_threads_may_build_it_at_once(shard: Path) -> None:
    with ThreadPoolExecutor(4) as pool:
        found = [told(index) for index in pool.map(opened, [shard] * 8)]
    assert found == [told(build_index(LocalFile(shard)))] * 8


def test_processes_may_build_it_at_once(tmp_path: Path) -> None:
    (path,) = write_numbered(tmp_path, [300])
    code = (
        "import sys; from threadloader.datasets._local_file import LocalFile\n"
        "from threadloader.datasets._shards.index import open_index\n"
        "input()\n"
        "print(sum(len(open_index(LocalFile(sys.argv[1]), sys.argv[1])) for _ in range(20)))"
    )
    command = [sys.executable, "-c", code, str(path)]
    pipe = subprocess.PIPE
    processes = [subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True) for _ in range(4)]
    for process in processes:
        assert process.stdin is not None
        process.stdin.write("\n")
        process.stdin.flush()
    assert [process.communicate()[0].strip() for process in processes] == ["6000"] * 4
    assert len(opened(path)) == 300
    assert len(list(tmp_path.iterdir())) == 2  # nothing half-written is left


def test_an_empty_archive_has_an_index(tmp_path: Path, builds: Builds) -> None:
    path = write_shard(tmp_path / "empty.tar", {})
    assert told(opened(path)) == told(opened(path)) == []
    assert builds.count == 1


def test_a_truncated_shard_has_none(shard: Path) -> None:
    data = shard.read_bytes()
    shard.write_bytes(data[:3000])
    with pytest.raises(DataError, match=r"shard-000.tar, offset .*truncated\?"):
        opened(shard)
    assert not Path(f"{shard}.tlindex").exists()


def test_names_that_are_no_text_are_kept(tmp_path: Path) -> None:
    path = tmp_path / "a.tar"
    path.write_bytes(tar_bytes([("caf\udce9.txt", b"x")]))
    assert [key for key, _ in told(opened(path))] == ["caf\udce9"]
    assert [key for key, _ in told(opened(path))] == ["caf\udce9"]
