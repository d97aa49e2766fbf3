"""Members are decoded by their extension; what can't be is an error, in few words and bytes."""

from __future__ import annotations

import io
import pickle
import tracemalloc
import zipfile
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.made_shards import write_shard

from threadloader.datasets import TarShards, TarStream
from threadloader.datasets._shards import decoding
from threadloader.errors import DataError, SampleError

MOST = 3000  # of a message, notes included


def npy(array: Any, **options: Any) -> bytes:
    file = io.BytesIO()
    np.save(file, array, **options)
    return file.getvalue()


def npz(*arrays: Any) -> bytes:
    file = io.BytesIO()
    np.savez_compressed(file, *arrays)
    return file.getvalue()


def zipped(name: str, data: bytes, kind: int = zipfile.ZIP_STORED, declared: int = -1) -> bytes:
    """Return a zip file of one member, which may say that it has fewer bytes."""
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", kind) as archive:
        archive.writestr(name, data)
    raw = bytearray(file.getvalue())
    if declared >= 0:
        for mark, place in ((b"PK\x03\x04", 22), (b"PK\x01\x02", 24)):
            at = raw.index(mark) + place
            raw[at : at + 4] = declared.to_bytes(4, "little")
    return bytes(raw)


def header(text: bytes) -> bytes:
    """Return an npy file without an array."""
    return b"\x93NUMPY\1\0" + len(text).to_bytes(2, "little") + text


def decoded(folder: Path, extension: str, data: bytes, **options: Any) -> Any:
    write_shard(folder / "a.tar", {"0": {extension: data}})
    ((value,),) = TarStream(folder / "a.tar", fields=(extension,), **options)
    return value


def told(error: BaseException) -> str:
    return "\n".join([str(error), *getattr(error, "__notes__", ())])


def exhaust(samples: Any) -> None:
    """Read on to the end: an error keeps what was read, and its file is closed late."""
    more = True
    while more:
        with suppress(Exception):
            more = next(samples, None) is not None


ARRAY = np.arange(6, dtype=np.float32).reshape(2, 3)


@pytest.mark.parametrize(
    ("extension", "data", "value"),
    [
        ("cls", b" -12\n", -12),
        ("json", b'{"a": [1, "\xc3\xa9"]}', {"a": [1, "é"]}),
        ("txt", "é\n".encode(), "é\n"),
        ("left.seg.txt", b"x", "x"),
        ("txt.bak", b"x", b"x"),
        ("pkl", pickle.dumps([1]), pickle.dumps([1])),
    ],
)
def test_text_is_decoded_and_what_could_run_code_stays_bytes(
    tmp_path: Path, extension: str, data: bytes, value: Any
) -> None:
    assert decoded(tmp_path, extension, data) == value
    assert decoded(tmp_path, extension, data, decode=False) == data
    own = {extension.rpartition(".")[2]: bytes.upper, f".{extension}": len}
    assert decoded(tmp_path, extension, data, decode=own) == len(data)
    assert decoded(tmp_path, f"x.{extension}", data, decode=own) == len(data)


@pytest.mark.parametrize(
    "array",
    [
        *(np.asfortranarray(ARRAY), np.zeros((0, 4), np.uint8)),
        np.array([(1, 2.0)], [("é", "i4"), ("b", "f8")]),
    ],
    ids=["columns", "empty", "structured"],
)
@pytest.mark.filterwarnings("ignore:Stored array in format 3.0")
def test_arrays_are_decoded(tmp_path: Path, array: Any) -> None:
    found = decoded(tmp_path, "npy", npy(array))
    assert found.dtype == array.dtype
    assert np.array_equal(found, array)
    assert found.flags.writeable
    several = decoded(tmp_path, "npz", npz(array, array))
    assert sorted(several) == ["arr_0", "arr_1"]
    assert np.array_equal(several["arr_1"], array)


PICKLED = npy(np.array([{}], object), allow_pickle=True)
BOMB = npy(np.zeros(1)) + bytes(32 << 20)


WRONG: list[tuple[str, bytes]] = [
    *(("json", b"[" * 500_000), ("txt", b"\xff")),
    *(("cls", b"one"), ("cls", b"\xff" * (8 << 20)), ("npy", PICKLED)),
    *(("npy", header(b"(" * 9000 + b"\n")), ("npz", zipped("a.npy", PICKLED))),
    ("npy", header(b"{'descr': '|u1', 'fortran_order': False, 'shape': (-1,)}\n")),
    ("npy", header(b"{'descr': '|u1', 'fortran_order': False, 'shape': (9999999999999,)}\n")),
    ("npz", npz(ARRAY, ARRAY)[:-30]),
    *(("npz", zipped("a.npy", BOMB, kind, 136)) for kind in (8, 12, 14)),
]


@pytest.mark.parametrize(
    ("extension", "data"), WRONG, ids=[f"{number} {name}" for number, (name, _) in enumerate(WRONG)]
)
def test_what_is_not_what_its_name_says_is_an_error_of_little_memory(
    tmp_path: Path, extension: str, data: bytes
) -> None:
    write_shard(tmp_path / "a.tar", {"0": {extension: data}, "1": {"txt": b"well"}})
    stream = iter(TarStream(tmp_path / "a.tar"))
    tracemalloc.start()
    with pytest.raises(DataError, match=r"it can't be decoded: .") as caught:
        next(stream)
    # NumPy asks the system for as much as a header declares, and touches what there is.
    peak = tracemalloc.get_traced_memory()[1]
    assert peak < (64 << 20) + 3 * len(data) or data.startswith(b"\x93NUMPY")
    tracemalloc.stop()
    assert (caught.value.member, caught.value.offset) == (f"0.{extension}", 512)
    assert len(told(caught.value)) < MOST
    assert next(stream)["txt"] == "well"
    exhaust(stream)


def test_the_arrays_of_an_npz_have_a_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decoding, "_LARGEST_NPZ", 200)
    decoded(tmp_path, "npz", npz(np.zeros(1)))
    with pytest.raises(DataError, match="bytes unpacked, more than"):
        decoded(tmp_path, "npz", npz(np.zeros(10)))


def fail(_: Any) -> Any:
    raise LookupError("the user's")


def stop(_: Any) -> Any:
    raise StopIteration


def fill(_: Any) -> Any:
    raise MemoryError


@pytest.mark.parametrize("where", ["transform", "decode"])
@pytest.mark.parametrize(
    ("function", "error"),
    [(fail, LookupError), (stop, SampleError), (fill, MemoryError)],
    ids=["error", "stop", "memory"],
)
def test_an_error_of_the_user_s_functions_names_the_sample(
    tmp_path: Path, where: str, function: Any, error: Any
) -> None:
    write_shard(tmp_path / "a.tar", {"0": {"txt": b""}})
    options: Any = (
        {"transform": function} if where == "transform" else {"decode": {"txt": function}}
    )
    for dataset in (TarStream, TarShards):
        samples = iter(dataset(tmp_path / "a.tar", **options))
        with pytest.raises(error) as caught:
            next(samples)
        assert "'0" in told(caught.value)
        assert "a.tar" in told(caught.value)
        if dataset is TarStream:
            exhaust(samples)


def test_a_missing_field_is_an_error_that_says_what_there_is(tmp_path: Path) -> None:
    many = {f"e{number}": b"" for number in range(1234)}
    write_shard(tmp_path / "a.tar", {"x/0": {"a": b""}, "x/1": {"a": b"", "c": b""}, "x/2": many})
    for dataset in (TarShards, TarStream):
        samples = iter(dataset(tmp_path / "a.tar", fields=("a;e1", "b;c;e0")))
        message = r"a\.tar, member 'x/0', offset 512: no b or c or e0 in the sample, .* 'a'\n"
        with pytest.raises(DataError, match=message):
            next(samples)
        if dataset is TarStream:
            exhaust(samples)
    assert TarShards(tmp_path / "a.tar", fields=("a;e1", "b;c;e0"))[1] == (b"", b"")
    with pytest.raises(DataError, match=r"which has 'e0', 'e1'.*\.\.\.\n") as caught:
        TarShards(tmp_path / "a.tar", fields=("jpg",))[2]
    assert len(told(caught.value)) < MOST


def test_a_data_error_is_short_and_stays_itself_when_it_is_pickled() -> None:
    error = DataError("m" * 10**6, "a.tar", member="n" * 10**6, offset=5)
    assert len(error.args[0]) < 1300
    assert (error.message[-5:], error.offset) == ("mm...", 5)
    again = pickle.loads(pickle.dumps(error))
    assert (str(again), again.message) == (str(error), error.message)
