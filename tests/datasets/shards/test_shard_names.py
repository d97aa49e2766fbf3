"""What a pattern of shards stands for."""

from __future__ import annotations

from pathlib import Path

import pytest

from threadloader.datasets import TarStream, _files


@pytest.mark.parametrize(
    ("pattern", "names"),
    [
        ("a", ["a"]),
        ("{0..2}", ["0", "1", "2"]),
        ("{008..011}", ["008", "009", "010", "011"]),
        ("{0..10}", [str(number) for number in range(11)]),
        ("{98..101}", ["98", "99", "100", "101"]),
        ("{a..c}", ["{a..c}"]),
        ("{a,b}-{1,2}", ["a-1", "a-2", "b-1", "b-2"]),
        ("{a,b{1..2}}c", ["ac", "b1c", "b2c"]),
        ("{a}", ["{a}"]),
        ("a}{a,b", ["a}{a,b"]),
        ("{{a,b}}", ["{a}", "{b}"]),
    ],
)
def test_braces_are_expanded_as_in_a_shell(pattern: str, names: list[str]) -> None:
    assert TarStream(f"{pattern}.tar").shards == [f"{name}.tar" for name in names]


@pytest.mark.parametrize(
    "pattern", ["{0..99999999999999}", "{0..9999}{0..9999}", "{a,b{0..999999}}{a,b}"]
)
def test_a_pattern_for_too_many_names_is_refused(
    pattern: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_files, "MOST", 1000)
    with pytest.raises(ValueError, match="more than 1,000"):
        TarStream(f"{pattern}.tar")


def test_patterns_of_files_come_one_after_the_other_and_a_file_is_itself(tmp_path: Path) -> None:
    for name in ("b.tar", "a1.tar", "a0.tar", "{a,b}[0].tar"):
        (tmp_path / name).touch()
    patterns = [tmp_path / "b.tar", str(tmp_path / "a*.tar"), tmp_path / "{a,b}[0].tar"]
    found = [Path(path).name for path in TarStream(patterns).shards]
    assert found == ["b.tar", "a0.tar", "a1.tar", "{a,b}[0].tar"]
    names = [f"shard-{number}.tar" for number in range(2000)]  # longer than a name may be
    assert TarStream(f"{{{','.join(names)}}}").shards == names
    with pytest.raises(ValueError, match="no shards"):
        TarStream([])


def test_a_pattern_that_nothing_matches_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"no file matches .*\*\.tar"):
        TarStream(tmp_path / "*.tar")
