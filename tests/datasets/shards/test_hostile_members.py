"""What an archive's names and members may do to memory and to messages: little."""

from __future__ import annotations

import io
import json
import pickle
import tarfile
import tracemalloc
import zipfile
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from support.made_shards import tar_bytes, write_shard
from support.patience import PATIENCE

from threadloader import ThreadLoader
from threadloader.datasets import TarShards, TarStream
from threadloader.datasets._shards.member_decoders import DECODERS
from threadloader.datasets._tar.archives import Archive
from threadloader.datasets._tar.headers import SPARSE, parse_pax
from threadloader.datasets._tar.reader import TarReader
from threadloader.datasets._tar.samples import EVERYTHING, RawSample, read_samples
from threadloader.errors import DataError, SampleError, shortened

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from conftest import Spawn

LONG = 8000  # bytes of a name that may just be
MOST = 3500  # characters of a message: a path, a name as it is quoted, and the text


def raw_samples(archive: bytes, limit: int) -> list[RawSample]:
    reader = TarReader(Archive(io.BytesIO(archive), None, ()), "it.tar.gz", limit)
    return list(read_samples(reader, "it.tar.gz", limit, EVERYTHING))


def told(error: BaseException) -> str:
    return "\n".join([str(error), *getattr(error, "__notes__", [])])


def exhaust(samples: Iterator[Any]) -> None:
    """Go on to the end, where files are closed, whatever happens on the way."""
    with suppress(StopIteration):
        while True:
            with suppress(DataError, KeyError, SampleError, MemoryError):
                next(samples)


def stop(_: Any) -> Any:
    raise StopIteration


def fail(_: Any) -> Any:
    raise KeyError("the user's")


# Names -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("format_", [tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
@pytest.mark.parametrize("letter", ["e", "é", "\U0001f600"])
def test_a_name_may_be_twice_as_long_as_a_path_and_no_longer(format_: int, letter: str) -> None:
    longest = f"{'a' * 4}.txt{letter * (8184 // len(letter.encode()))}"
    assert len(longest.encode()) == 8192
    ((key, parts),) = raw_samples(tar_bytes([(longest, b"1")], format_), 1 << 20)
    assert (key, [part.name for part in parts.values()]) == ("aaaa", [longest])
    with pytest.raises(DataError, match="its name has 8,193 bytes, and not 1 to 8,192") as caught:
        raw_samples(tar_bytes([(longest + "e", b"1")], format_), 1 << 20)
    assert caught.value.offset is not None


@pytest.mark.parametrize(
    "ending", ["e" * 200, "e" * 200 + "\U0001f600", "\u0130" * 99 + "\U0001f600"]
)
def test_names_take_no_more_memory_than_the_limit(ending: str) -> None:
    limit = 4 << 20
    archive = tar_bytes([(f"0.{number}{ending}", b"") for number in range(9000)])
    tracemalloc.start()
    try:
        with pytest.raises(DataError, match=r"its sample has 4,1.*limit=4,194,304"):
            raw_samples(archive, limit)
        assert tracemalloc.get_traced_memory()[1] < limit
    finally:
        tracemalloc.stop()


def test_of_a_thousand_records_of_a_sparse_member_one_is_kept() -> None:
    records = b"".join(b"19 GNU.sparse.%03d=\n" % number for number in range(1000))
    assert parse_pax(records + b"12 path=abc\n") == {SPARSE: b"", "path": b"abc"}


@pytest.mark.parametrize(
    ("names", "options"),
    [
        (["0." + "e" * LONG], {"fields": ("jpg",)}),
        ([f"0.{n}{'e' * LONG}" for n in range(50)], {"fields": ("jpg",)}),
        (["0." + "e" * LONG, "0." + "E" * LONG], {}),
        (["k" * LONG + ".txt", "1.txt", "k" * LONG + ".txt"], {}),
        (["k" * LONG + ".txt"], {"transform": fail}),
        (["k" * LONG + ".txt"], {"transform": stop}),
        (["k" * LONG + ".json"], {}),
        (["k" * LONG + ".own"], {"decode": {"own": fail}}),
        (["k" * LONG + ".own"], {"decode": {"own": stop}}),
        (["\ufffe" * (LONG // 3) + ".json"], {}),
    ],
    ids=["field", "fields", "twice", "again", "user", "stop", "json", "own", "own stop", "escapes"],
)
def test_no_message_is_long_whatever_the_names_are(
    tmp_path: Path, names: list[str], options: dict[str, Any]
) -> None:
    path = tmp_path / "a.tar"
    path.write_bytes(tar_bytes([(name, b"") for name in names]))
    stream = iter(TarStream(path, **options))
    with pytest.raises((DataError, KeyError, SampleError)) as caught:
        list(stream)
    exhaust(stream)
    assert "a.tar" in told(caught.value)
    assert len(told(caught.value)) < MOST


def test_of_many_members_the_first_are_named(tmp_path: Path) -> None:
    write_shard(tmp_path / "a.tar", {"0": {f"e{number}": b"" for number in range(1234)}})
    stream = iter(TarStream(tmp_path / "a.tar", fields=("jpg",)))
    with pytest.raises(DataError, match=r"which has 'e0', 'e1'.*'e9', 1,224 more$"):
        next(stream)
    exhaust(stream)


def test_a_data_error_is_short_and_stays_itself_when_it_is_pickled() -> None:
    error = DataError("m" * 10**6, "a.tar", member="n" * 10**6, offset=5)
    assert len(str(error)) < 1300
    assert (error.message[-5:], error.offset) == ("mm...", 5)
    again = pickle.loads(pickle.dumps(error))
    assert (str(again), again.message) == (str(error), error.message)


@pytest.mark.parametrize(("text", "short"), [("", ""), ("abcd", "abcd"), ("abcde", "a...")])
def test_a_text_is_shortened_to_a_length(text: str, short: str) -> None:
    assert shortened(text, 4) == short


@pytest.mark.filterwarnings("ignore:a sample was left out")
def test_of_a_skipped_sample_a_thousand_characters_are_kept(tmp_path: Path, spawn: Spawn) -> None:
    def verbose(_: Any) -> Any:
        raise ValueError("v" * 10**6)

    write_shard(tmp_path / "a.tar", {"0": {"txt": b""}, "1": {"txt": b""}})
    shards = TarShards(tmp_path / "a.tar", transform=verbose)
    loader = ThreadLoader(shards, num_workers=1, on_error="skip")
    assert spawn(list, loader).result(PATIENCE) == []
    for skipped in loader.statistics().skipped:
        assert skipped.error == f"ValueError: {'v' * 985}..."


# Members -----------------------------------------------------------------------------------------


def npy(header: bytes) -> bytes:
    return b"\x93NUMPY\1\0" + len(header).to_bytes(2, "little") + header


def npz_with(count: int) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        for number in range(count):
            array = io.BytesIO()
            np.save(array, np.zeros(1))
            archive.writestr(f"{number}.npy", array.getvalue())
    return file.getvalue()


def test_an_npz_of_more_arrays_than_zip_files_count_is_not_opened(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("threadloader.datasets._shards.member_decoders._MOST_ARRAYS", 3)
    assert len(DECODERS["npz"](npz_with(3))) == 3
    four = npz_with(4)
    monkeypatch.setattr("zipfile.ZipFile", None)  # else all entries are read
    with pytest.raises(ValueError, match="it has more than 3 arrays"):
        DECODERS["npz"](four)


def test_json_beyond_its_limit_is_refused_before_it_is_parsed_but_by_the_user_s_function(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("threadloader.datasets._shards.member_decoders._LARGEST_JSON", 8)
    write_shard(tmp_path / "a.tar", {"0": {"json": b"[[],[]]"}, "1": {"json": b"[[], [] ]"}})
    stream = iter(TarStream(tmp_path / "a.tar"))
    assert next(stream)["json"] == [[], []]
    with pytest.raises(DataError, match=r"9 bytes of JSON are more than 8.*decode=\{'json'"):
        next(stream)
    exhaust(stream)
    own = list(TarStream(tmp_path / "a.tar", decode={"json": json.loads}))
    assert own[1]["json"] == [[], []]


def test_the_limit_of_json_is_what_an_npz_may_take_in_objects() -> None:
    data = b"[" + b"{}," * (1 << 18) + b"{}]"
    tracemalloc.start()
    try:
        kept = DECODERS["json"](data)
        assert tracemalloc.get_traced_memory()[1] < 48 * len(data)
    finally:
        tracemalloc.stop()
    assert len(kept) == (1 << 18) + 1
    with pytest.raises(ValueError, match="bytes of JSON are more than 33,554,432"):
        DECODERS["json"](bytes((32 << 20) + 1))


def test_a_number_of_many_bytes_is_not_quoted_in_memory() -> None:
    data = b"\xff" * (8 << 20)
    tracemalloc.start()
    try:
        with pytest.raises(ValueError, match="8,388,608 bytes are no number"):
            DECODERS["cls"](data)
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(
    ("extension", "data"),
    [
        ("json", b"[" * 500_000),
        ("json", b'{"a":' * 500_000),
        ("json", b"1" * 5000),
        ("json", b"\xff\xfe\0"),
        ("txt", b"\xff"),
        ("cls", b"one"),
        ("cls", b""),
        ("cls", b"1" * 5000),
        ("npy", b""),
        ("npy", npy(b"-" * 9000 + b"1\n")),
        ("npy", npy(b"(" * 9000 + b"\n")),
        ("npy", npy(b"{'descr': '|u1', 'fortran_order': False, 'shape': (-1,)}\n")),
        ("npy", npy(b"{'descr': '|O', 'fortran_order': False, 'shape': (9,)}\n")),
        ("npy", npy(b"{'descr': [('a', '|O')], 'fortran_order': False, 'shape': (1,)}\n")),
        ("npy", npy(b"{'descr': '|V2147483647', 'fortran_order': False, 'shape': (9,)}\n")),
        ("npy", npy(b"{'descr': '|u1', 'fortran_order': False, 'shape': (9999999999999,)}\n")),
        ("npz", b"PK\5\6" + bytes(18)[:-1]),
        ("npz", npz_with(2)[:-30]),
    ],
)
def test_a_member_that_is_not_what_its_name_says_is_an_error_that_names_the_place(
    tmp_path: Path, extension: str, data: bytes
) -> None:
    write_shard(tmp_path / "a.tar", {"0": {extension: data}, "1": {"txt": b"well"}})
    stream = iter(TarStream(tmp_path / "a.tar"))
    tracemalloc.start()
    try:
        with pytest.raises(DataError, match=r"it can't be decoded: .") as caught:
            next(stream)
        assert tracemalloc.get_traced_memory()[1] < 64 << 20
    finally:
        tracemalloc.stop()
    assert (caught.value.member, caught.value.offset) == (f"0.{extension}", 512)
    assert len(told(caught.value)) < MOST
    assert next(stream)["txt"] == "well"
    exhaust(stream)


def test_a_lack_of_memory_is_no_fault_of_the_member_s(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def exhausted(_: bytes) -> Any:
        raise MemoryError

    ours: dict[str, Callable[[bytes], Any]] = {"txt": exhausted}
    for place in ("member_decoders", "make_sample"):
        monkeypatch.setattr(f"threadloader.datasets._shards.{place}.DECODERS", ours)
    write_shard(tmp_path / "a.tar", {"0": {"txt": b""}})
    stream = iter(TarStream(tmp_path / "a.tar"))
    with pytest.raises(MemoryError) as caught:
        list(stream)
    exhaust(stream)
    assert "a.tar, member '0.txt', offset 512" in told(caught.value)
