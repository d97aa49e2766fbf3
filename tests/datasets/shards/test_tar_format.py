"""What an archive may have: samples come as they were written, or an error says what is wrong."""

from __future__ import annotations

import importlib
import sys
import tarfile
import tracemalloc
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.made_shards import HAS_ZSTD, compressed, tar_bytes

from threadloader.datasets import TarStream
from threadloader.errors import DataError

FORMATS = [tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT]
each_format = pytest.mark.parametrize("format_", FORMATS, ids=["ustar", "gnu", "pax"])
# A size that can't be is known at once only where the archive's own size is known.
each_packing = pytest.mark.parametrize("ending", [".tar", ".tar.gz"])


def read(path: Path, archive: bytes, **options: Any) -> list[dict[str, Any]]:
    """Return the samples of an archive, as bytes."""
    path.write_bytes(compressed(archive, "".join(path.suffixes)))
    return list(TarStream(path, decode=False, **options))


def header(**fields: bytes) -> bytes:
    """Return a header with some fields changed, and a checksum that is right."""
    block = bytearray(tarfile.TarInfo("a.txt").tobuf(tarfile.USTAR_FORMAT))
    at = {"name": 0, "size": 124, "kind": 156, "magic": 257, "prefix": 345}
    for name, value in fields.items():
        block[at[name] : at[name] + len(value)] = value
    block[148:156] = b" " * 8
    block[148:156] = b"%06o\0 " % sum(block)
    return bytes(block)


def extended(record: bytes, kind: bytes = b"x") -> bytes:
    """Return a header of one record."""
    record = b"%d %b\n" % (len(record) + 4 + (len(record) > 95), record)
    return header(kind=kind, size=b"%011o\0" % len(record)) + record.ljust(512, b"\0")


@contextmanager
def little_memory(nbytes: int) -> Iterator[None]:
    """What Python takes meanwhile is less than so many bytes."""
    tracemalloc.start()
    yield
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < nbytes


# The whole of Unicode takes hypothesis seconds to sort, in each process.
KEYS = st.text("a_-é\u0301\U0001f600\x7f\n ", min_size=1, max_size=180).filter(
    lambda key: not key.startswith("__")
)


@each_format
@settings(max_examples=25)
@given(samples=st.dictionaries(KEYS, st.binary(max_size=2000), max_size=5))
def test_samples_are_those_that_were_written(
    tmp_path_factory: pytest.TempPathFactory, format_: int, samples: dict[str, bytes]
) -> None:
    folder = tmp_path_factory.getbasetemp()
    if format_ == tarfile.USTAR_FORMAT:
        samples = {key: data for key, data in samples.items() if len(key.encode()) <= 90}
    archive = tar_bytes([(f"{key}.bin", data) for key, data in samples.items()], format_)
    expected = [{"__key__": key, "bin": data} for key, data in samples.items()]
    assert read(folder / "it.tar", archive) == read(folder / "it.tar.gz", archive) == expected


@pytest.mark.parametrize(
    ("names", "samples"),
    [
        (["a/0.jpg", "a/0.cls", "b/0.JPG", "b/0.x.y"], [("a/0", "jpg cls"), ("b/0", "jpg x.y")]),
        (["0.left.seg.PNG", "v1.2/0.jpg"], [("0", "left.seg.png"), ("v1.2/0", "jpg")]),
        (["/etc/passwd.txt", "../up.txt"], [("/etc/passwd", "txt"), ("../up", "txt")]),
        (["0.", "__a.txt", "a\nb.txt"], [("0", ""), ("__a", "txt"), ("a\nb", "txt")]),
        (["Makefile", "a.b/c", ".hidden", "n/._0.jpg", "__meta__", "__meta__/0.txt"], []),
        ([f"{'f' * 90}/{'g' * 40}/{'h' * 90}.txt"], [(f"{'f' * 90}/{'g' * 40}/{'h' * 90}", "txt")]),
        (["caf\udce9.txt"], [("caf\udce9", "txt")]),
    ],
    ids=["neighbours", "dots", "paths", "odd", "none", "long", "no text"],
)
def test_a_name_is_split_at_the_first_dot_of_its_file(
    tmp_path: Path, names: list[str], samples: list[tuple[str, str]]
) -> None:
    found = read(
        tmp_path / "a.tar", tar_bytes([(name, name.encode("utf-8", "replace")) for name in names])
    )
    told = [(sample.pop("__key__"), " ".join(sample)) for sample in found]
    assert told == samples


@pytest.mark.parametrize(
    ("names", "told"),
    [
        (["0.jpg", "0.JPG"], "member '0.JPG', offset 1,024: its sample has '0.jpg' already"),
        (["0.jpg", "1.jpg", "0.cls"], "member '0.cls', offset 1,536: the key '0' was there before"),
        (["a" * 8189 + ".txt"], "its name has 8,193 bytes, and not 1 to 8,192"),
    ],
    ids=["extension", "key", "long"],
)
def test_names_that_make_no_sample_are_an_error(
    tmp_path: Path, names: list[str], told: str
) -> None:
    with pytest.raises(DataError, match=told):
        read(tmp_path / "a.tar", tar_bytes([(name, b"") for name in names]))


def test_what_are_no_files_is_passed_over_whatever_size_it_declares(tmp_path: Path) -> None:
    kinds = (b"1", b"2", b"3", b"4", b"5", b"6")  # links, devices, folders, pipes
    blocks = b"".join(header(kind=kind, size=b"77777777777\0") for kind in kinds)
    archive = blocks + tar_bytes([("b.txt", b"b")])
    assert read(tmp_path / "a.tar", archive) == [{"__key__": "b", "txt": b"b"}]


def test_sizes_and_names_of_extended_headers_count(tmp_path: Path) -> None:
    block = header(size=b"\x80" + (5).to_bytes(11, "big"))  # 8 bits a byte
    archive = block + b"hello".ljust(512, b"\0") + bytes(1024)
    assert read(tmp_path / "a.tar", archive)[0]["txt"] == b"hello"
    archive = extended(b"size=5") + header() + b"hello".ljust(512, b"\0") + bytes(1024)
    assert read(tmp_path / "a.tar", archive)[0]["txt"] == b"hello"
    # A global one holds for all members without one of their own.
    archive = extended(b"path=all.txt", b"g") + tar_bytes([("b.txt", b"b"), ("é.txt", b"c")])
    keys = [sample["__key__"] for sample in read(tmp_path / "a.tar", archive)]
    assert keys == ["all", "é"]


@each_packing
@pytest.mark.parametrize(
    ("block", "message"),
    [
        (header(size=b"-0000000001\0"), "a header's size is -1"),
        (header(size=b"00000000008\0"), "damaged one: invalid header"),
        (header(size=b"\xff" * 12), "a header's size is -1"),
        (header()[:-1] + b"x", "damaged one: bad checksum"),
        (header(kind=b"S"), "sparse members can't be read"),
        (extended(b"GNU.sparse.major=1") + header(), "sparse members can't be read"),
        (header(size=b"77777777777\0"), r"archive ends at|sample_limit="),
        (header(size=b"\x80" + b"\x7f" * 11), r"truncated\?|sample_limit="),
        (header(kind=b"L", size=b"00007777777\0"), "names and records fill 2,097,663 bytes"),
        (header(kind=b"x", size=b"77777777777\0"), "names and records fill"),
        (header(kind=b"x") * 5000, "names and records fill"),
        *((extended(b"size=" + size) + header(), "its size is") for size in (b"-1", b"1e3")),
        *((header(kind=b"x", size=b"00000000006\0") + record.ljust(512, b"\0"), "damaged pax")
          for record in (b"x a=b\n", b"99 a=b", b"6 a=bc", b"7 abcd", b"\xff")),
    ],
)  # fmt: skip
def test_what_a_header_must_not_say_is_an_error_that_names_the_place(
    tmp_path: Path, block: bytes, message: str, ending: str
) -> None:
    before = tar_bytes([("b.txt", b"b")])[:1024]
    with (
        little_memory(16 << 20),
        pytest.raises(DataError, match=message) as caught,
    ):
        read(tmp_path / f"a{ending}", before + block + bytes(4096), sample_limit=1 << 20)
    assert caught.value.path == str(tmp_path / f"a{ending}")
    assert caught.value.offset is not None
    assert caught.value.offset >= 1024


@each_packing
def test_an_archive_cut_off_anywhere_is_an_error(tmp_path: Path, ending: str) -> None:
    archive = tar_bytes([("a.txt", b"a" * 700), ("b.txt", b"")], tarfile.USTAR_FORMAT)
    end = 512 + 1024 + 512  # where zeros begin
    for length in range(0, end, 31):
        with pytest.raises(DataError, match=r"truncated\?"):
            read(tmp_path / f"a{ending}", archive[:length])
    assert len(read(tmp_path / f"a{ending}", archive[: end + 512])) == 2


def test_members_that_are_wanted_and_headers_count_towards_the_limit(tmp_path: Path) -> None:
    head = 512 + 4 * len("0.a" + "a")
    archive = tar_bytes([("0.a", bytes(600)), ("0.b", bytes(600)), ("0.c", bytes(5000))])
    path, most = tmp_path / "a.tar", 3 * head + 1200
    assert read(path, archive, fields=("a", "b"), sample_limit=most) == [(bytes(600), bytes(600))]
    with pytest.raises(DataError, match=rf"up to here, and sample_limit={most - 1:,}"):
        read(path, archive, fields=("a", "b"), sample_limit=most - 1)
    archive = tar_bytes((f"0.{number}{chr(0x1F600) * 50}", b"") for number in range(1500))
    with little_memory(2 << 20), pytest.raises(DataError, match=r"sample_limit=1,048,576"):
        read(path, archive, sample_limit=1 << 20)


@pytest.mark.parametrize("ending", [".tar.gz", ".tar.zst"])
def test_a_checksum_behind_the_end_of_the_archive_is_looked_at(tmp_path: Path, ending: str) -> None:
    if ending == ".tar.zst" and not HAS_ZSTD:
        pytest.skip("nothing to compress with")
    data = bytearray(compressed(tar_bytes([("a.txt", b"a" * 3000)]), ending))
    data[-3] ^= 1  # in the length that gzip has last; in zstd's checksum
    path = tmp_path / f"it{ending}"
    path.write_bytes(data)
    with pytest.raises(DataError, match="can't be unpacked"):
        list(TarStream(path))


@pytest.mark.parametrize("name", ["a.tar.xz", "https://u:p@host/a?b.tar"])
def test_the_name_tells_what_a_shard_is(name: str) -> None:
    pytest.importorskip("urllib3")
    known = ["A.TAR", "a.tgz", "https://host/a.tar.zst?token=x.zip#y"]
    assert TarStream(known).shards == known
    with pytest.raises(ValueError, match="is no shard") as caught:
        TarStream([name])
    assert "u:p" not in str(caught.value)


def test_without_a_library_for_zstd_what_to_install_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    load = importlib.import_module

    def no_zstd(name: str, *rest: Any) -> Any:
        if "zst" in name:
            raise ModuleNotFoundError(name)
        return load(name, *rest)

    monkeypatch.setattr("importlib.import_module", no_zstd)
    (tmp_path / "a.tar.zst").touch()
    own = sys.version_info >= (3, 14)  # Python has a module of its own
    told = "built without zstd" if own else r"pip install .*extra: zstd"
    with pytest.raises(ModuleNotFoundError, match=told):
        list(TarStream(tmp_path / "a.tar.zst"))
