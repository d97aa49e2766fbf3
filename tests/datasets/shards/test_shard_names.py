"""What a pattern of shards stands for."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from threadloader.datasets._shards.names import expand_braces, find_shards


@pytest.mark.parametrize(
    ("pattern", "names"),
    [
        ("a.tar", ["a.tar"]),
        ("", [""]),
        ("{0..2}", ["0", "1", "2"]),
        ("{008..011}", ["008", "009", "010", "011"]),
        ("{2..0}", ["2", "1", "0"]),
        ("{0..8..4}", ["0", "4", "8"]),
        ("{8..0..-4}", ["8", "4", "0"]),
        ("{-1..1}", ["-1", "0", "1"]),
        ("{a..c}", ["a", "b", "c"]),
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
    assert expand_braces(pattern) == names


@pytest.mark.skipif(shutil.which("bash") is None, reason="no bash")
def test_generated_braces_are_expanded_as_bash_does() -> None:
    patterns: list[str] = []
    tokens = st.sampled_from(["a", "b", "{", "}", ",", "x{1..3}", "{a,b}", "{07..9}", "-"])

    @given(st.lists(tokens, max_size=6).map("".join))
    def collect(pattern: str) -> None:
        patterns.append(pattern)

    collect()
    # A closing brace too many, or an opening one, is read in several ways by several shells.
    whole = [each for each in patterns if each and each.count("{") == each.count("}")]
    script = "".join(f"printf '%s\\n' {each}; echo ==\n" for each in whole)
    told = subprocess.run(["bash", "-c", script], capture_output=True, text=True, check=True)  # noqa: S607
    expected = [part.splitlines() for part in told.stdout.split("==\n")[:-1]]
    balanced = [(p, names) for p, names in zip(whole, expected, strict=True) if _is_nested(p)]
    assert len(balanced) > 5
    for pattern, names in balanced:
        assert [name for name in expand_braces(pattern) if name] == [n for n in names if n], pattern


def _is_nested(pattern: str) -> bool:
    depth = 0
    for letter in pattern:
        depth += {"{": 1, "}": -1}.get(letter, 0)
        if depth < 0:
            return False
    return True


@pytest.mark.parametrize(
    "pattern", ["{0..99999999999999}", "{0..9999}{0..9999}", "{a,b{0..999999}}{a,b}"]
)
def test_a_pattern_for_too_many_names_is_refused(pattern: str) -> None:
    with pytest.raises(ValueError, match="more than 1,000,000"):
        expand_braces(pattern)


def make(folder: Path, *names: str) -> None:
    for name in names:
        (folder / name).touch()


def test_wildcards_are_looked_up_in_order_of_name(tmp_path: Path) -> None:
    make(tmp_path, "b.tar", "a.tar", "c.tar.gz", "a.tar.tlindex")
    assert find_shards(tmp_path / "*.tar") == [str(tmp_path / "a.tar"), str(tmp_path / "b.tar")]
    assert find_shards(str(tmp_path / "{b,c}.tar*")) == [
        str(tmp_path / "b.tar"),
        str(tmp_path / "c.tar.gz"),
    ]


def test_several_patterns_come_one_after_the_other(tmp_path: Path) -> None:
    make(tmp_path, "b.tar", "a.tar")
    found = find_shards([tmp_path / "b.tar", str(tmp_path / "a*.tar")])
    assert [Path(path).name for path in found] == ["b.tar", "a.tar"]


def test_a_file_whose_name_has_braces_and_stars_is_itself(tmp_path: Path) -> None:
    make(tmp_path, "{a,b}[0].tar")
    assert find_shards(tmp_path / "{a,b}[0].tar") == [str(tmp_path / "{a,b}[0].tar")]


def test_braces_of_urls_are_expanded_and_queries_kept() -> None:
    found = find_shards("https://host/{0..1}.tar?part=1")
    assert found == ["https://host/0.tar?part=1", "https://host/1.tar?part=1"]


def test_a_pattern_that_nothing_matches_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"no file matches .*\*\.tar"):
        find_shards(tmp_path / "*.tar")


def test_a_list_in_braces_may_be_longer_than_a_name(tmp_path: Path) -> None:
    names = [f"shard-{number}.tar" for number in range(2000)]
    found = find_shards(tmp_path / f"{{{','.join(names)}}}")
    assert [Path(path).name for path in found] == names


def test_no_pattern_is_an_error() -> None:
    with pytest.raises(ValueError, match="no shards"):
        find_shards([])
