"""TarShards: any sample at any time."""

from __future__ import annotations

import json
import os
import tracemalloc
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from support.made_shards import COPIES, ENDINGS, numbered, tar_bytes, write_numbered, write_shard
from support.patience import PATIENCE

from threadloader import ThreadLoader
from threadloader.datasets._local_file import LocalFile, Shelf
from threadloader.datasets._shards.tar_shards import TarShards
from threadloader.datasets._shards.tar_stream import TarStream
from threadloader.errors import DataError, SampleError

if TYPE_CHECKING:
    from collections.abc import Callable

    from support.patience import Spawn


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Three shards of 21 samples; one is empty."""
    write_numbered(tmp_path, [8, 0, 13])
    return tmp_path


def test_samples_are_dicts_of_decoded_members(folder: Path) -> None:
    dataset = TarShards(folder / "shard-{000..002}.tar")
    assert len(dataset) == 21
    for number, (key, parts) in enumerate(numbered(0, 21).items()):
        assert dataset[number] == {
            "__key__": key,
            "txt": parts["txt"].decode(),
            "cls": number,
            "bin": parts["bin"],
        }
    assert dataset.keys == list(numbered(0, 21))


def test_named_fields_make_tuples_of_the_first_alternative(folder: Path) -> None:
    dataset = TarShards(folder / "*.tar", fields=("json;TXT", "__key__", "cls;txt"))
    assert dataset[9] == ("sample 9", "00009", 9)


@pytest.mark.parametrize(("index", "number"), [(-1, 20), (-21, 0), (np.int64(7), 7), (8, 8)])
def test_indices_are_python_s(folder: Path, index: int, number: int) -> None:
    assert TarShards(folder / "*.tar")[index]["cls"] == number


@pytest.mark.parametrize("index", [21, -22, 10**9])
def test_an_index_out_of_range_is_named(folder: Path, index: int) -> None:
    with pytest.raises(IndexError, match=f"index {index} is out of range: there are 21 samples"):
        TarShards(folder / "*.tar")[index]


def test_a_loop_over_it_ends(folder: Path) -> None:
    assert [sample["cls"] for sample in TarShards(folder / "*.tar")] == list(range(21))


def test_an_index_must_be_a_number(folder: Path) -> None:
    with pytest.raises(TypeError):
        TarShards(folder / "*.tar")["00001"]  # type: ignore[call-overload]


def test_undecoded_members_are_bytes(folder: Path) -> None:
    dataset = TarShards(folder / "*.tar", decode=False)
    assert dataset[5] == {"__key__": "00005"} | numbered(5, 6)["00005"]


def test_functions_of_the_user_s_decode_and_transform(folder: Path) -> None:
    dataset = TarShards(
        folder / "*.tar",
        decode={"bin": len, ".TXT": bytes.upper},
        transform=lambda sample: [sample],
    )
    assert dataset[3] == [{"__key__": "00003", "txt": b"SAMPLE 3", "cls": 3, "bin": 3}]


def test_batches_are_the_same_for_any_number_of_threads(folder: Path, spawn: Spawn) -> None:
    def batches(threads: int) -> list[Any]:
        dataset = TarShards(folder / "*.tar", fields=("cls", "txt"))
        loader = ThreadLoader(dataset, 4, shuffle=True, seed=3, threads=threads, output="numpy")
        with loader:
            return [(np.asarray(cls).tolist(), list(txt)) for cls, txt in loader]

    expected = spawn(batches, 0).result(PATIENCE)
    assert sorted(number for cls, _ in expected for number in cls) == list(range(21))
    for threads in (1, 2, 4):
        assert spawn(batches, threads).result(PATIENCE) == expected


def test_members_far_apart_are_read_each_by_itself(tmp_path: Path) -> None:
    middle = {"filler": bytes(1 << 20)}
    write_shard(tmp_path / "a.tar", {"0": {"a": b"first"} | middle | {"b": b"last"}})
    dataset = TarShards(tmp_path / "a.tar", fields=("a", "b"))
    assert dataset[0] == (b"first", b"last")  # the index is built
    tracemalloc.start()
    assert dataset[0] == (b"first", b"last")
    assert tracemalloc.get_traced_memory()[1] < 1 << 19
    tracemalloc.stop()


def test_a_missing_field_is_an_error_that_says_what_there_is(tmp_path: Path) -> None:
    write_shard(tmp_path / "a.tar", {"x/0": {"a": b""}, "x/1": {"a": b"", "b": b""}})
    dataset = TarShards(tmp_path / "a.tar", fields=("a", "b;c"))
    message = r"a\.tar, member 'x/0', offset 512: no b or c in the sample, which has 'a'$"
    with pytest.raises(DataError, match=message):
        dataset[0]
    assert dataset[1] == (b"", b"")


def test_what_can_t_be_decoded_is_an_error_that_names_the_place(tmp_path: Path) -> None:
    write_shard(tmp_path / "a.tar", {"0": {"json": b"{"}, "1": {"json": b"{}"}})
    dataset = TarShards(tmp_path / "a.tar")
    with pytest.raises(DataError, match=r"a\.tar, member '0\.json', offset 512") as caught:
        dataset[0]
    assert isinstance(caught.value.__cause__, json.JSONDecodeError)
    assert dataset[1]["json"] == {}


def fails(_: Any) -> Any:
    raise LookupError("mine")


@pytest.mark.parametrize("arguments", [{"transform": fails}, {"decode": {"txt": fails}}])
def test_an_error_of_the_user_s_functions_arrives_with_a_note(folder: Path, arguments: Any) -> None:
    with pytest.raises(LookupError, match="mine") as caught:
        TarShards(folder / "shard-000.tar", **arguments)[2]
    assert "00002" in caught.value.__notes__[0]
    assert "shard-000.tar" in caught.value.__notes__[0]


def test_a_sample_beyond_the_limit_is_an_error(folder: Path) -> None:
    dataset = TarShards(folder / "*.tar", sample_limit=20)
    with pytest.raises(DataError, match=r"it has \d+ bytes, and sample_limit=20"):
        dataset[20]
    assert TarShards(folder / "*.tar", sample_limit=20, fields=["cls"])[20] == (20,)


@pytest.mark.parametrize("ending", [ending for ending in ENDINGS if ending != ".tar"])
def test_a_compressed_shard_is_refused_with_what_to_do(tmp_path: Path, ending: str) -> None:
    write_numbered(tmp_path, [2], ending)
    with pytest.raises(ValueError, match=r"is compressed: .* by TarStream"):
        TarShards(tmp_path / f"*{ending}")


def test_a_damaged_shard_is_refused_at_once(folder: Path) -> None:
    path = folder / "shard-002.tar"
    data = bytearray(path.read_bytes())
    data[1024 + 300] ^= 4  # in a header
    path.write_bytes(data)
    with pytest.raises(DataError, match=r"shard-002\.tar, offset 1,024: wrong checksum"):
        TarShards(folder / "*.tar")


def test_a_shard_cut_off_after_its_index_was_built_is_an_error(folder: Path) -> None:
    dataset = TarShards(folder / "*.tar")
    assert dataset[20]["cls"] == 20  # the shard is open
    path = folder / "shard-002.tar"
    path.write_bytes(path.read_bytes()[:2000])
    with pytest.raises(DataError, match=r"shard-002\.tar, offset .*truncated\?"):
        dataset[20]


def test_a_declared_size_takes_no_memory(tmp_path: Path) -> None:
    data = bytearray(tar_bytes([("0.bin", b"x")]))
    data[124:136] = b"00007777777\0"  # 2 MiB, behind the end
    data[148:156] = b" " * 8
    data[148:156] = b"%06o\0 " % sum(data[:512])
    (tmp_path / "a.tar").write_bytes(data)
    with pytest.raises(DataError, match=r"2,097,151 bytes, and the archive ends at 10,240"):
        TarShards(tmp_path / "a.tar")


def test_a_dot_and_spaces_around_a_field_do_not_count(folder: Path) -> None:
    dataset = TarShards(folder / "*.tar", fields=(" .TXT; .json", ".cls "))
    assert dataset[3] == TarShards(folder / "*.tar", fields=("txt;json", "cls"))[3]


def test_it_tells_what_it_is(folder: Path) -> None:
    told = f"TarShards: 21 samples in 3 shards, {folder / 'shard-000.tar'} to "
    assert repr(TarShards(folder / "*.tar")) == f"{told}{folder / 'shard-002.tar'}"


@pytest.mark.parametrize(
    ("fields", "error"),
    [("jpg", TypeError), ((), ValueError), ([], ValueError), (("cls", ""), ValueError)],
)
def test_fields_are_a_sequence_of_extensions(folder: Path, fields: Any, error: Any) -> None:
    with pytest.raises(error, match="fields"):
        TarShards(folder / "*.tar", fields=fields)


def test_it_can_be_copied_pickled_and_closed(folder: Path) -> None:
    dataset = TarShards(folder / "*.tar", fields=("cls",))
    assert dataset[3] == (3,)
    dataset.close()
    twins = [kept(dataset) for kept in COPIES]
    assert [twin[20] for twin in twins] == [(20,)] * 4


def test_a_dataset_of_many_shards_keeps_few_files_open(tmp_path: Path) -> None:
    shelf = Shelf(3)
    files = []
    for number in range(9):
        path = tmp_path / f"{number}.bin"
        path.write_bytes(bytes([number]))
        files.append(LocalFile(path, shelf))
    before = len(list(Path("/proc/self/fd").iterdir())) if Path("/proc/self/fd").is_dir() else None
    for _ in range(2):
        assert [file.read_at(0, 1)[0] for file in files] == list(range(9))
    if before is not None:
        assert len(list(Path("/proc/self/fd").iterdir())) <= before + 3


def test_options_of_urls_are_refused_for_files_here(tmp_path: Path) -> None:
    write_numbered(tmp_path, [1])
    with pytest.raises(TypeError, match="transfrm"):
        TarShards(tmp_path / "*.tar", transfrm=len)


def test_what_decode_is_not_is_refused(tmp_path: Path) -> None:
    write_numbered(tmp_path, [1])
    for decode in ("pil", {"cls": 3}):
        with pytest.raises(TypeError, match="decode"):
            TarShards(tmp_path / "*.tar", decode=decode)  # type: ignore[arg-type]


def test_a_shard_that_is_written_anew_while_it_is_in_use_is_an_error(tmp_path: Path) -> None:
    (path,) = write_numbered(tmp_path, [3])
    dataset = TarShards(path)
    assert dataset[0]["__key__"]
    dataset.close()
    path.write_bytes(path.read_bytes() + bytes(10240))
    with pytest.raises(DataError, match="changed while it was in use"):
        dataset[1]


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


def test_a_stream_of_another_file_than_the_expected_one_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.bin"
    path.write_bytes(b"a")
    file = LocalFile(path)
    file.expect(file.stamp())
    with file.open() as stream:
        assert stream.read() == b"a"
    path.write_bytes(b"changed")
    with pytest.raises(DataError, match="changed"):
        file.open()


@pytest.mark.parametrize("place", ["transform", "decode"])
def test_a_stop_iteration_of_the_user_s_code_is_an_error_of_its_sample(
    tmp_path: Path, place: str
) -> None:
    def stops(_: Any) -> Any:
        raise StopIteration

    (path,) = write_numbered(tmp_path, [3])
    options: Any = {"transform": stops} if place == "transform" else {"decode": {"cls": stops}}
    for samples in (iter(TarStream(path, **options)), iter(TarShards(path, **options))):
        with pytest.raises(SampleError, match="StopIteration"):
            next(samples)


def test_a_user_without_a_home_has_the_index_beside_the_shard(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def homeless() -> Path:
        raise RuntimeError

    monkeypatch.setattr(Path, "home", homeless)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    (path,) = write_numbered(tmp_path, [3])
    assert len(TarShards(path)) == 3
