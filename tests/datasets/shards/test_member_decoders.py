"""Members are decoded by their extension."""

from __future__ import annotations

import io
import pickle
import tracemalloc
import zipfile
from typing import Any

import numpy as np
import pytest

from threadloader.datasets._shards.member_decoders import DECODERS, decoders, member_decoder


def npy(array: Any, **options: Any) -> bytes:
    file = io.BytesIO()
    np.save(file, array, **options)
    return file.getvalue()


def image(kind: str, mode: str = "RGB") -> bytes:
    made = pytest.importorskip("PIL.Image").new(mode, (5, 3), 77 if mode == "L" else (77, 77, 77))
    file = io.BytesIO()
    made.save(file, kind)
    return file.getvalue()


@pytest.mark.parametrize(
    ("extension", "data", "value"),
    [
        ("cls", b"12", 12),
        ("cls", b" -1\n", -1),
        ("index", b"3", 3),
        ("json", b'{"a": [1, "\xc3\xa9"]}', {"a": [1, "é"]}),
        ("txt", "é\n".encode(), "é\n"),
    ],
)
def test_text_is_decoded(extension: str, data: bytes, value: Any) -> None:
    assert DECODERS[extension](data) == value


@pytest.mark.parametrize(
    "array",
    [
        np.arange(6, dtype=np.float32).reshape(2, 3),
        np.asfortranarray(np.arange(6).reshape(2, 3)),
        np.array(3.5),
        np.zeros((0, 4), np.uint8),
        np.array(["a", "bc"]),
        np.array([(1, 2.0)], [("é", "i4"), ("b", "f8")]),
    ],
    ids=str,
)
@pytest.mark.filterwarnings("ignore:Stored array in format 3.0")
def test_arrays_are_decoded(array: Any) -> None:
    found = DECODERS["npy"](npy(array))
    assert found.dtype == array.dtype
    assert np.array_equal(found, array)
    assert found.flags.writeable
    file = io.BytesIO()
    np.savez_compressed(file, one=array, two=array)
    several = DECODERS["npz"](file.getvalue())
    assert sorted(several) == ["one", "two"]
    assert np.array_equal(several["two"], array)


@pytest.mark.parametrize("kind", ["jpeg", "png", "webp"])
def test_images_are_rgb(kind: str) -> None:
    found = DECODERS[kind](image(kind))
    assert found.shape == (3, 5, 3)
    assert found.dtype == np.uint8
    assert abs(int(found[1, 1, 1]) - 77) < 3


def test_grey_images_are_rgb() -> None:
    assert DECODERS["png"](image("png", "L")).shape == (3, 5, 3)


@pytest.mark.parametrize("extension", ["npy", "npz"])
def test_a_pickle_in_an_array_is_not_loaded(extension: str) -> None:
    data = npy(np.array([{}], object), allow_pickle=True)
    if extension == "npz":
        file = io.BytesIO()
        with zipfile.ZipFile(file, "w") as archive:
            archive.writestr("a.npy", data)
        data = file.getvalue()
    with pytest.raises(ValueError, match="allow_pickle=False"):
        DECODERS[extension](data)


@pytest.mark.parametrize("shape", ["(99999999999,)", "(99999, 99999, 99)", "(101,)"])
def test_an_array_must_be_as_large_as_it_declares(shape: str) -> None:
    data = npy(np.zeros(100, np.uint8)).replace(b"(100,), }" + b" " * 30, f"{shape}, }}".encode())
    data = data[:8] + (len(data) - 110).to_bytes(2, "little") + data[10:]
    tracemalloc.start()
    with pytest.raises(ValueError, match="bytes is declared, and 100 are there"):
        DECODERS["npy"](data)
    assert tracemalloc.get_traced_memory()[1] < 1 << 20
    tracemalloc.stop()


def test_a_zip_that_unpacks_to_more_than_the_limit_is_not_unpacked(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    file = io.BytesIO()
    np.savez_compressed(file, np.zeros(1 << 20, np.uint8))
    assert len(file.getvalue()) < 1 << 12
    monkeypatch.setattr("threadloader.datasets._shards.member_decoders._LARGEST_NPZ", 1 << 20)
    with pytest.raises(ValueError, match=r"its arrays have 1,048,704 bytes unpacked"):
        DECODERS["npz"](file.getvalue())


def test_what_could_run_code_stays_bytes() -> None:
    for extension in ("pkl", "pickle", "pyd", "pth", "pt"):
        assert member_decoder(decoders(True), extension) is None


def test_a_pickle_is_loaded_if_the_user_asks() -> None:
    found = member_decoder(decoders({"pkl": pickle.loads}), "pkl")
    assert found is not None
    assert found[1](pickle.dumps([1])) == [1]


@pytest.mark.parametrize(
    ("extension", "name"),
    [
        ("png", "png"),
        ("left.png", "png"),
        ("left.seg.png", "seg.png"),
        ("seg.png", "seg.png"),
        ("png.bak", None),
        ("", None),
    ],
)
def test_the_longest_part_of_an_extension_counts(extension: str, name: str | None) -> None:
    found = member_decoder(decoders({"seg.png": len}), extension)
    assert (found and found[0]) == name


def test_functions_of_the_user_s_come_before_ours() -> None:
    assert decoders({".JPG": len})["jpg"] is len
    assert decoders({})["cls"] is DECODERS["cls"]
    assert decoders(False) == {}


def zipped(name: str, data: bytes, kind: int, declared: int) -> bytes:
    """Return a zip file whose one member says that it has fewer bytes than it unpacks to."""
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", kind) as archive:
        archive.writestr(name, data)
    raw = bytearray(file.getvalue())
    for mark, place in ((b"PK\x03\x04", 22), (b"PK\x01\x02", 24)):
        at = raw.index(mark) + place
        raw[at : at + 4] = declared.to_bytes(4, "little")
    return bytes(raw)


@pytest.mark.parametrize("kind", [zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
def test_no_more_is_unpacked_than_a_zip_declares(kind: int) -> None:
    bomb = zipped("a.npy", npy(np.zeros(1)) + bytes(64 << 20), kind, 136)
    tracemalloc.start()
    try:
        with pytest.raises(Exception, match=r"compressed|CRC|large|bytes"):
            decoders(decode=True)["npz"](bomb)
        assert tracemalloc.get_traced_memory()[1] < 8 << 20
    finally:
        tracemalloc.stop()
