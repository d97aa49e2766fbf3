"""`threadloader bench`: a user's dataset, its table, its picture, and how it fails."""

from __future__ import annotations

import json
import re
import sys
from typing import TYPE_CHECKING, Any
from xml.etree import ElementTree as ET

import pytest

from threadloader import _torch
from threadloader.cli import main
from threadloader.cli.bar_chart import Bar, bar_chart
from threadloader.cli.contenders import BareLoop, Processes, Threads
from threadloader.cli.race import ROUNDS, TimedSampler
from threadloader.cli.user_dataset import named_object, user_dataset

if TYPE_CHECKING:
    from pathlib import Path

# A module and a batch that is the whole dataset; each loader delivers a few batches.
TINY = ["--seconds", "0.03", "--batch-size", "4", "--threads", "0", "2", "--workers", "0"]
CODE = """
import numpy as np

class Numbers:
    def __init__(self, size=8):
        self.size = size
    def __len__(self):
        return self.size
    def __getitem__(self, index):
        return {"x": np.full(3, index), "y": index}

made = Numbers()
def empty():
    return Numbers(0)
def failing():
    raise RuntimeError("no data here\\nnor there")
class Broken(Numbers):
    def __getitem__(self, index):
        return 1 // (index - 5)
class Stream:
    def __iter__(self):
        return iter(range(4))
class Holder:
    inner = Numbers
number = 3
listed = [1, 2, 3, 4, 5]
collate = len
"""


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The name of a module in the current folder."""
    name = f"data_{tmp_path.name}"
    (tmp_path / f"{name}.py").write_text(CODE, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", sys.path[:])
    return name


def benched(capsys: pytest.CaptureFixture[str], *arguments: object) -> list[str]:
    assert main(["bench", *map(str, arguments)]) == 0
    return capsys.readouterr().out.splitlines()


def expected_loaders() -> list[str]:
    torch = ["torch DataLoader, 0 workers"] if _torch.AVAILABLE else []
    ours = ["ThreadLoader, 0 threads", "ThreadLoader, 2 threads", "ThreadLoader, its default"]
    return ["bare loop", *torch, *ours]


@pytest.mark.parametrize("name", ["made", "Numbers", "Holder.inner", "listed"])
def test_the_table_has_a_row_for_each_loader(
    name: str, module: str, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = benched(capsys, f"{module}:{name}", *TINY)
    rows = [line for line in lines if line.endswith(" ms")]
    assert [re.split(" {2,}", row)[0] for row in rows] == expected_loaders()
    assert " 1.00x " in rows[0]
    assert any("The default had " in line for line in lines)
    assert any(line.endswith("our best fixed number.") for line in lines)
    assert any("torch's best." in line for line in lines) == _torch.AVAILABLE


def test_a_file_and_a_collate_function_can_be_named(
    module: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    name = tmp_path / f"{module}.py"
    lines = benched(capsys, f"{name}:made", *TINY, "--collate", f"{module}:collate")
    assert len([line for line in lines if line.endswith(" ms")]) == len(expected_loaders())


def test_all_rounds_are_in_the_file_and_the_picture_has_a_bar_for_each_loader(
    module: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    files = ["--json", tmp_path / "rounds.json", "--svg", tmp_path / "rates.svg"]
    benched(capsys, f"{module}:made", *TINY, *files)
    content = json.loads((tmp_path / "rounds.json").read_text(encoding="utf-8"))
    assert [loader["name"] for loader in content["loaders"]] == expected_loaders()
    for loader in content["loaders"]:
        assert len(loader["rounds"]) == ROUNDS
        assert all(figure["rate"] > 0 for figure in loader["rounds"])
    assert all(threads >= 1 for threads, _ in content["loaders"][-1]["threads_chosen"])
    picture = (tmp_path / "rates.svg").read_text(encoding="utf-8")
    assert "prefers-color-scheme: dark" in picture
    words = [element.text for element in texts(picture)]
    assert [word for word in words if word in expected_loaders()] == expected_loaders()


def texts(picture: str) -> list[Any]:
    return ET.fromstring(picture).findall("{http://www.w3.org/2000/svg}text")  # noqa: S314  # our own


@pytest.mark.parametrize("top", [0.04, 1.0, 7.0, 12.0, 99.0, 5e6])
def test_a_picture_has_a_few_grid_lines_and_lies_in_its_frame(top: float) -> None:
    bars = [Bar("loop & <all>" * 9, top / 2, top / 3, top, "loop"), Bar("b", top, top, top, "ours")]
    picture = bar_chart("A title", "units", bars)
    width = float(picture.partition('viewBox="0 0 ')[2].split()[0])
    shapes = ET.fromstring(picture)  # noqa: S314  # our own
    grid = [element for element in shapes if element.get("class") == "grid"]
    assert 3 <= len(grid) <= 12
    for element in shapes:
        right = float(element.get("x") or element.get("x2") or 0) + float(element.get("width") or 0)
        assert 0 <= right <= width


@pytest.mark.parametrize(
    ("name", "code", "words"),
    [
        ("nodata:made", 2, "there is no module nodata"),
        ("nowhere.py:made", 2, "there is no file nowhere.py"),
        ("{}", 2, "does not name a dataset"),
        ("{}:nothing", 2, "has no nothing"),
        ("{}:number", 2, "is of type int, and no dataset"),
        ("{}:Stream", 2, "is of type Stream; bench needs __getitem__ and __len__"),
        ("{}:empty", 2, "is empty"),
        ("{}:failing", 2, "failed: RuntimeError: no data here"),
        ("{}:Broken", 2, "[5] failed: ZeroDivisionError"),
        ("{}:made --collate {}:nothing", 2, "has no nothing"),
        ("{}:made --collate {}:failing", 2, "the collate function failed: TypeError"),
    ],
)
def test_what_can_not_be_loaded_is_one_line_with_its_exit_code(
    name: str, code: int, words: str, module: str, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = name.format(module, module).split()
    assert main(["bench", *arguments[:1], *TINY, "--batch-size", "8", *arguments[1:]]) == code
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("threadloader bench: error: ")
    assert words in line


def test_an_object_is_called_only_if_it_is_no_dataset(module: str) -> None:
    assert user_dataset(f"{module}:made") is named_object(f"{module}:made")
    assert len(user_dataset(f"{module}:Numbers")) == 8


@pytest.mark.parametrize(
    "make",
    [
        BareLoop,
        lambda collate: Threads(2, collate),
        lambda collate: Threads(None, collate),
        pytest.param(
            lambda collate: Processes(0, collate),
            marks=pytest.mark.skipif(not _torch.AVAILABLE, reason="torch's own"),
        ),
    ],
    ids=["loop", "threads", "default", "torch"],
)
def test_loaders_collate_with_a_function_of_the_user(make: Any) -> None:
    sampler = TimedSampler(5, batch_size=2, least=3)
    sampler.stop_at = 0.0
    assert list(make(tuple).batches([10, 11, 12, 13, 14], sampler)) == [
        (10, 11),
        (12, 13),
        (14, 10),
    ]
