"""What a pattern of shards stands for."""

from __future__ import annotations

from pathlib import Path

import pytest

from threadloader.datasets import TarStream


@pytest.mark.parametrize(
    ("pattern", "names"),
    [
        ("a", ["a"]),
        ("", [""]),
        ("{0..2}", ["0", "1", "2"]),
        ("{008..011}", ["008", "009", "010", "011"]),
        ("{0..10}", [str(number) for number in range(11)]),
        ("{98..101}", ["98", "99", "100", "101"]),
        ("{a..c}", ["{a..c}"]),
        ("{a,b}-{1,2}", ["a-1", "a-2", "b-1", "b-2"]),
        ("x{a,}y", ["xay", "xy"]),
        ("{a,b{1..2}}c", ["ac", "b1c", "b2c"]),
        ("{a}", ["{a}"]),
        ("{}", ["{}"]),
        ("{a", ["{a"]),
        ("a}", ["a}"]),
        ("{a,b", ["{a,b"]),
        ("{{a,b}}", ["{a}", "{b}"]),
    ],
)
def test_braces_are_expanded_as_in_a_shell(pattern: str, names: list[str]) -> None:
    assert TarStream(f"{pattern}.tar").shards == [f"{name}.tar" for name in names]


@pytest.mark.parametrize(
    "pattern", ["{0..99999999999999}", "{0..9999}{0..9999}", "{a,b{0..999999}}{a,b}"]
)
def test_a_pattern_for_too_many_names_is_refused(pattern: str) -> None:
    with pytest.raises(ValueError, match="more than 1,000,000"):
        TarStream(f"{pattern}.tar")


def make(folder: Path, *names: str) -> None:
    for name in names:
        (folder / name).touch()


def test_several_patterns_come_one_after_the_other(tmp_path: Path) -> None:
    make(tmp_path, "b.tar", "a.tar")
    found = TarStream([tmp_path / "b.tar", str(tmp_path / "a*.tar")]).shards
    assert [Path(path).name for path in found] == ["b.tar", "a.tar"]


def test_a_file_whose_name_has_braces_and_stars_is_itself(tmp_path: Path) -> None:
    make(tmp_path, "{a,b}[0].tar")
    assert TarStream(tmp_path / "{a,b}[0].tar").shards == [str(tmp_path / "{a,b}[0].tar")]


def test_braces_of_urls_are_expanded_and_queries_kept() -> None:
    pytest.importorskip("urllib3")
    found = TarStream("https://host/{0..1}.tar?part=1").shards
    assert found == ["https://host/0.tar?part=1", "https://host/1.tar?part=1"]


def test_a_pattern_that_nothing_matches_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"no file matches .*\*\.tar"):
        TarStream(tmp_path / "*.tar")


def test_a_list_in_braces_may_be_longer_than_a_name(tmp_path: Path) -> None:
    names = [f"shard-{number}.tar" for number in range(2000)]
    found = TarStream(tmp_path / f"{{{','.join(names)}}}").shards
    assert [Path(path).name for path in found] == names


def test_no_pattern_is_an_error() -> None:
    with pytest.raises(ValueError, match="no shards"):
        TarStream([])
