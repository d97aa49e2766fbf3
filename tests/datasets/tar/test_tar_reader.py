"""Our reader of tar archives next to the standard library's, and what it refuses."""

from __future__ import annotations

import importlib
import io
import sysconfig
import tarfile
import tracemalloc
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.made_shards import HAS_ZSTD, compressed, tar_bytes

from threadloader.datasets._local_file import LocalFile
from threadloader.datasets._tar.archives import Archive, compression_of, open_archive
from threadloader.datasets._tar.headers import parse_header, parse_pax
from threadloader.datasets._tar.reader import TarReader
from threadloader.errors import DataError

if TYPE_CHECKING:
    from pathlib import Path

FORMATS = {"ustar": tarfile.USTAR_FORMAT, "gnu": tarfile.GNU_FORMAT, "pax": tarfile.PAX_FORMAT}
LIMIT = 1 << 20
each_format = pytest.mark.parametrize("format_", FORMATS.values(), ids=list(FORMATS))


def read(archive: bytes, size: int | None = -1, limit: int = LIMIT) -> list[tuple[str, bytes]]:
    """Return the files of an archive; as if it was compressed, with a size of None."""
    told = len(archive) if size == -1 else size
    reader = TarReader(Archive(io.BytesIO(archive), told, ()), "it.tar", limit)
    return [(member.name, reader.read(member)) for member in reader.members()]


def by_tarfile(archive: bytes) -> list[tuple[str, bytes]]:
    with tarfile.open(fileobj=io.BytesIO(archive)) as opened_:
        return [
            (info.name, opened_.extractfile(info).read())  # type: ignore[union-attr]
            for info in opened_
            if info.isreg()
        ]


def header(**fields: bytes) -> bytes:
    """Return a header with some fields changed, and a checksum that is right."""
    block = bytearray(tarfile.TarInfo("a.txt").tobuf(tarfile.USTAR_FORMAT))
    at = {"name": 0, "size": 124, "kind": 156, "magic": 257, "prefix": 345}
    for name, value in fields.items():
        block[at[name] : at[name] + len(value)] = value
    block[148:156] = b" " * 8
    block[148:156] = b"%06o\0 " % sum(block)
    return bytes(block)


NAMES = st.text(
    st.characters(exclude_characters="\0/", exclude_categories=["Cs"]), min_size=1, max_size=200
).filter(lambda name: name not in {".", ".."})


@each_format
@given(members=st.lists(st.tuples(NAMES, st.binary(max_size=2000)), max_size=5))
def test_files_are_those_that_tarfile_reads(format_: int, members: list[tuple[str, bytes]]) -> None:
    if format_ == tarfile.USTAR_FORMAT:
        members = [(name, data) for name, data in members if len(name.encode()) <= 100]
    archive = tar_bytes(members, format_)
    assert read(archive) == read(archive, None) == by_tarfile(archive) == members


@each_format
def test_long_names_in_folders_are_those_that_tarfile_reads(format_: int) -> None:
    members = [(f"{'f' * 90}/{'g' * 40}/{'h' * 90}{n}.txt", bytes(n)) for n in range(3)]
    archive = tar_bytes(members, format_)
    assert read(archive) == by_tarfile(archive) == members


def test_links_folders_devices_and_pipes_are_passed_over_whatever_size_they_declare() -> None:
    kinds = [tarfile.LNKTYPE, tarfile.SYMTYPE, tarfile.CHRTYPE, tarfile.BLKTYPE, tarfile.DIRTYPE]
    blocks = [header(kind=kind, size=b"77777777777\0") for kind in (*kinds, tarfile.FIFOTYPE)]
    archive = b"".join(blocks) + tar_bytes([("b.txt", b"b")])
    assert read(archive) == by_tarfile(archive) == [("b.txt", b"b")]


@pytest.mark.parametrize("name", ["/etc/passwd", "../../up.txt", "C:\\x.txt", "a\nb.txt"])
def test_a_name_is_only_a_name(name: str) -> None:
    assert read(tar_bytes([(name, b"data")])) == [(name, b"data")]


def test_a_size_of_eight_bits_a_byte_is_read() -> None:
    block = header(size=b"\x80" + (5).to_bytes(11, "big"))
    assert read(block + b"hello".ljust(512, b"\0") + bytes(1024)) == [("a.txt", b"hello")]


def test_a_global_header_holds_for_all_members_without_one_of_their_own() -> None:
    record = b"16 path=all.txt\n"
    block = header(kind=b"g", size=b"%011o\0" % len(record))
    members = [("b.txt", b"b"), ("é.txt", b"c")]  # the second has a header for its name
    archive = block + record.ljust(512, b"\0") + tar_bytes(members)
    assert read(archive) == by_tarfile(archive) == [("all.txt", b"b"), ("é.txt", b"c")]


def test_the_checksum_of_signed_bytes_is_right_too() -> None:
    block = bytearray(header(name="é.txt".encode()))
    block[148:156] = b"%06o\0 " % (int(block[148:154], 8) - 256 * 2)
    assert parse_header(bytes(block)).name == "é.txt"


@pytest.mark.parametrize(
    ("block", "message"),
    [
        (header(size=b"-0000000001\0"), "a header's size is b'-0000000001"),
        (header(size=b"0x000000001\0"), "a header's size is b'0x"),
        (header(size=b"00000000_01\0"), "no number of bytes"),
        (header(size=b"00000000008\0"), "no number of bytes"),
        (header(size=b"\xff" * 12), "no number of bytes"),  # minus one
        (header()[:-1] + b"x", "wrong checksum of a header"),
        (bytes(511) + b"x", "wrong checksum"),
        (header(kind=b"S"), "sparse members can't be read"),
        (header(size=b"77777777777\0"), r"8,589,934,591 bytes, and the archive ends at"),
        (header(size=b"\x80" + b"\x7f" * 11), "truncated"),
        (header(kind=b"L", size=b"00007777777\0"), "names and records fill 2,097,663 bytes"),
        (header(kind=b"x", size=b"77777777777\0"), "names and records fill"),
    ],
)
@pytest.mark.parametrize("plain", [True, False])
def test_what_a_header_must_not_say_is_an_error_that_names_the_place(
    block: bytes, message: str, plain: bool
) -> None:
    before = tar_bytes([("b.txt", b"b")])[:1024]
    archive = before + block + bytes(4096)
    if not plain:
        message = message.partition(", and the archive")[0].replace("truncated", "sample_limit=")
    tracemalloc.start()
    with pytest.raises(DataError, match=message) as caught:
        read(archive, len(archive) if plain else None)
    assert tracemalloc.get_traced_memory()[1] < 8 << 20
    tracemalloc.stop()
    assert caught.value.path == "it.tar"
    assert caught.value.offset in {1024, 1536}


def test_extended_headers_without_end_are_an_error() -> None:
    block = header(kind=b"x")
    with pytest.raises(DataError, match="its names and records fill"):
        read(block * 5000 + bytes(1024), None)


def test_folders_without_end_are_an_error() -> None:
    block = header(kind=b"5")
    with pytest.raises(DataError, match="100,001 members in a row are no files"):
        read(block * 100_100 + bytes(1024), None)


@pytest.mark.parametrize("size", [b"-1", b"1e3", b"9" * 30])
def test_a_size_in_a_record_must_be_one(size: bytes) -> None:
    record = b"size=" + size + b"\n"
    record = b"%d " % (len(record) + 3) + record
    block = header(kind=b"x", size=b"%011o\0" % len(record)) + record.ljust(512, b"\0")
    with pytest.raises(DataError, match="its size is"):
        read(block + header() + bytes(1024))


@pytest.mark.parametrize(
    "records", [b"5 a=b\n", b"x a=b\n", b"99 a=b\n", b"6 a=bc", b"0 a=b\n", b"7 abcd\n", b"\xff"]
)
def test_records_in_another_form_are_an_error(records: bytes) -> None:
    with pytest.raises(ValueError, match="damaged pax record"):
        parse_pax(records)


def test_sparse_files_as_gnu_tar_writes_them_are_an_error() -> None:
    record = b"22 GNU.sparse.major=1\n"
    block = header(kind=b"x", size=b"%011o\0" % len(record)) + record.ljust(512, b"\0")
    with pytest.raises(DataError, match="sparse members"):
        read(block + header() + bytes(1024))


@pytest.mark.parametrize("plain", [True, False])
def test_an_archive_cut_off_anywhere_is_an_error(plain: bool) -> None:
    members = [("a.txt", b"a" * 700), ("b.txt", b"")]
    archive = tar_bytes(members, tarfile.USTAR_FORMAT)
    end = 512 + 1024 + 512  # where zeros begin
    for length in range(0, end, 17):
        with pytest.raises(DataError, match=r"truncated\?"):
            read(archive[:length], length if plain else None)
    assert read(archive[: end + 512], end + 512 if plain else None) == members


@pytest.mark.parametrize("limit", [99, 100])
def test_a_member_may_have_as_many_bytes_as_the_limit_says(limit: int) -> None:
    archive = tar_bytes([("a.txt", bytes(100))])
    if limit == 100:
        assert read(archive, limit=limit)
        return
    with pytest.raises(DataError, match=r"it has 100 bytes, and sample_limit=99"):
        read(archive, limit=limit)


@pytest.mark.parametrize("ending", [".tar.gz", ".tar.zst"])
def test_a_checksum_behind_the_end_of_the_archive_is_looked_at(tmp_path: Path, ending: str) -> None:
    if ending == ".tar.zst" and not HAS_ZSTD:
        pytest.skip("nothing to compress with")
    data = bytearray(compressed(tar_bytes([("a.txt", b"a" * 3000)]), ending))
    data[-3] ^= 1  # in the length that gzip has last; in zstd's checksum
    path = tmp_path / f"it{ending}"
    path.write_bytes(data)
    with open_archive(LocalFile(path)) as archive:
        reader = TarReader(archive, str(path), LIMIT)
        with pytest.raises(DataError, match="can't be unpacked"):
            list(reader.members())


def test_an_archive_that_unpacks_without_end_takes_no_memory(tmp_path: Path) -> None:
    block = header(size=b"%011o\0" % (1 << 30))
    path = tmp_path / "bomb.tar.gz"
    path.write_bytes(compressed(block + bytes(64 << 20), ".tar.gz"))
    tracemalloc.start()
    with open_archive(LocalFile(path)) as archive:
        reader = TarReader(archive, str(path), 2 << 30)
        (member,) = [next(reader.members())]
        with pytest.raises(DataError, match=r"1,073,741,824 bytes were to be read, and it ends"):
            reader.read(member)
    assert tracemalloc.get_traced_memory()[1] < 200 << 20  # what there is, twice, and not 1 GiB
    tracemalloc.stop()


@pytest.mark.parametrize(
    ("path", "told"),
    [
        ("a.tar", ""),
        ("A.TAR", ""),
        ("a.tar.gz", "gzip"),
        ("a.tgz", "gzip"),
        ("a.tar.zst", "zstd"),
        ("https://host/a.tar.zst?token=x.tar#y", "zstd"),
        ("https://host/a.tar?...", ""),
    ],
)
def test_the_name_tells_the_compression(path: str, told: str) -> None:
    assert compression_of(path) == told


@pytest.mark.parametrize("path", ["a.zip", "a.tar.xz", "a.tar?x", "https://host/a?b.tar"])
def test_another_name_is_no_shard(path: str) -> None:
    with pytest.raises(ValueError, match="is no shard"):
        compression_of(path)


@pytest.mark.parametrize("library", ["compression.zstd", "backports.zstd", "zstandard"])
def test_zstd_is_read_by_each_library(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, library: str
) -> None:
    if sysconfig.get_config_var("Py_GIL_DISABLED") and library == "zstandard":
        pytest.skip("it may switch the GIL back on")
    pytest.importorskip(library)
    if not HAS_ZSTD:
        pytest.skip("nothing to compress with")
    members = [(f"{number}.bin", bytes([number]) * number * 900) for number in range(50)]
    packed = compressed(tar_bytes(members), ".tar.zst")
    load = importlib.import_module

    def only(name: str, *rest: Any) -> Any:
        if "zst" in name and name != library:
            raise ModuleNotFoundError(name)
        return load(name, *rest)

    monkeypatch.setattr("importlib.import_module", only)
    path = tmp_path / "a.tar.zst"
    for data, whole in ((packed, True), (packed[:-600], False), (packed[:900] + packed, False)):
        path.write_bytes(data)
        found = []
        try:
            with open_archive(LocalFile(path)) as archive:
                reader = TarReader(archive, str(path), LIMIT)
                found.extend((member.name, reader.read(member)) for member in reader.members())
        except DataError:
            assert not whole
        else:
            assert whole
        assert found == members[: len(found)]


def test_a_free_threaded_build_never_loads_zstandard(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []

    def missing(name: str, *_: Any) -> Any:
        asked.append(name)
        raise ModuleNotFoundError(name)

    monkeypatch.setattr("sysconfig.get_config_var", lambda _: 1)
    monkeypatch.setattr("importlib.import_module", missing)
    path = tmp_path / "a.tar.zst"
    path.write_bytes(b"")
    with pytest.raises(ModuleNotFoundError), open_archive(LocalFile(path)):
        pass
    assert asked == ["compression.zstd", "backports.zstd"]


def test_zstd_without_a_library_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def missing(name: str, *_: Any) -> Any:
        raise ModuleNotFoundError(name)

    monkeypatch.setattr("importlib.import_module", missing)
    path = tmp_path / "a.tar.zst"
    path.write_bytes(b"")
    with (
        pytest.raises(ModuleNotFoundError, match=r"pip install .*extra: zstd"),
        open_archive(LocalFile(path)),
    ):
        pass
