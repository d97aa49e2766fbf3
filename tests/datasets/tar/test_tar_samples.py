"""Members of one name are a sample."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING

import pytest
from support.made_shards import tar_bytes

from threadloader.datasets._tar.archives import Archive
from threadloader.datasets._tar.reader import TarReader
from threadloader.datasets._tar.samples import EVERYTHING, RawSample, read_samples, split_name
from threadloader.errors import DataError

if TYPE_CHECKING:
    from collections.abc import Container


HEAD = 512 + 4 * len("0.a" + "a")  # bytes that a member's header counts for


def samples(
    members: list[tuple[str, bytes]],
    limit: int = 1 << 20,
    wanted: Container[str] = EVERYTHING,
) -> list[RawSample]:
    archive = tar_bytes(members)
    reader = TarReader(Archive(io.BytesIO(archive), len(archive), ()), "it.tar", limit)
    return list(read_samples(reader, "it.tar", limit, wanted))


@pytest.mark.parametrize(
    ("name", "split"),
    [
        ("0007.jpg", ("0007", "jpg")),
        ("n01/0007.JPG", ("n01/0007", "jpg")),
        ("0007.left.seg.PNG", ("0007", "left.seg.png")),
        ("v1.2/0007.jpg", ("v1.2/0007", "jpg")),
        ("./0007.jpg", ("./0007", "jpg")),
        ("/etc/passwd.txt", ("/etc/passwd", "txt")),
        ("../up.txt", ("../up", "txt")),
        ("0007.", ("0007", "")),
        ("Makefile", None),
        ("a.b/c", None),
        (".hidden", None),
        ("n01/._0007.jpg", None),
        ("__meta__", None),
        ("__meta__/0.txt", None),
        ("__a.txt", ("__a", "txt")),
        ("", None),
    ],
)
def test_a_name_is_split_at_the_first_dot_of_the_file(
    name: str, split: tuple[str, str] | None
) -> None:
    assert split_name(name) == split


def test_neighbours_of_one_key_are_a_sample() -> None:
    names = ["a/0.jpg", "a/0.cls", "b/0.jpg", "Makefile", "b/0.cls", "b/1.x.y"]
    found = samples([(name, name.encode()) for name in names])
    told = [(key, {ext: part.data for ext, part in parts.items()}) for key, parts in found]
    assert told == [
        ("a/0", {"jpg": b"a/0.jpg", "cls": b"a/0.cls"}),
        ("b/0", {"jpg": b"b/0.jpg", "cls": b"b/0.cls"}),
        ("b/1", {"x.y": b"b/1.x.y"}),
    ]


@pytest.mark.parametrize("names", [["0.jpg", "0.JPG"], ["0.jpg", "0.cls", "0.jpg"]])
def test_an_extension_that_comes_twice_is_an_error(names: list[str]) -> None:
    with pytest.raises(DataError, match=r"its sample has '0.jpg' already") as caught:
        samples([(name, b"") for name in names])
    assert caught.value.member == names[-1]
    assert caught.value.offset is not None


def test_a_key_that_comes_again_later_is_an_error() -> None:
    with pytest.raises(DataError, match=r"the key '0' was there before") as caught:
        samples([("0.jpg", b""), ("1.jpg", b""), ("0.cls", b"")])
    assert caught.value.member == "0.cls"


def test_a_sample_may_have_as_many_bytes_as_the_limit_says() -> None:
    members = [("0.a", bytes(600)), ("0.b", bytes(600))]
    assert samples(members, 2 * (600 + HEAD))
    with pytest.raises(DataError, match=r"its sample has 2,256 bytes up to here.*limit=2,255"):
        samples(members, 2 * (600 + HEAD) - 1)


def test_members_that_are_not_wanted_do_not_count_towards_the_limit() -> None:
    members = [("0.a", bytes(5000)), ("0.b", b"b"), ("1.b", b"b")]
    first, second = samples(members, 2 * HEAD + 1, {"b"})
    assert (first.members["a"].data, first.members["b"].data) == (None, b"b")
    assert second.members["b"].data == b"b"


def test_headers_count_towards_the_limit() -> None:
    with pytest.raises(DataError, match="sample_limit"):
        samples([(f"0.{number}", b"") for number in range(100)], 512 * 99)
