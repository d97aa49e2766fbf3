"""`threadloader check`: what is printed and written of a dataset, and its exit codes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest
from support.child import PATHS, run_child
from support.patience import PATIENCE

from threadloader._check.findings import ADVICE
from threadloader.cli import main

if TYPE_CHECKING:
    from pathlib import Path


def place_of(text: str, project: Path) -> str:
    lines = (project / "user_datasets.py").read_text(encoding="utf-8").splitlines()
    return f"user_datasets.py:{[line.strip() for line in lines].index(text) + 1}: "


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("made", "user_datasets:made: nothing found (9 samples"),
        ("Holder.rows", "nothing found (9 samples"),
        ("Failing", "note: 2 of 5 samples raise an error; the first one, of index 1: KeyError: 1"),
        ("stream", "note: one thread reads an iterator"),
        ("unsafe --dataset-copy deep", "nothing found"),
    ],
)
def test_a_safe_dataset_exits_with_0(
    name: str, told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["check", *f"user_datasets:{name}".split()]) == 0
    assert told in capsys.readouterr().out


@pytest.mark.parametrize("name", ["user_datasets:unsafe", "user_datasets.py:Unsafe"])
def test_an_unsafe_dataset_exits_with_1_and_names_file_and_line(
    name: str, project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["check", name]) == 1
    out = capsys.readouterr().out
    place = place_of("self.position = index", project)
    assert f"{place}shared-attribute: dataset.reader.position is shared" in out
    assert ADVICE["shared-attribute"] in out
    assert "1 finding (" in out


@pytest.mark.skipif(os.name == "nt", reason="its processes do not end by signals")
def test_a_dataset_that_ends_the_process_is_a_finding_with_the_line(
    project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["check", "user_datasets:Crashing"]) == 1
    place = place_of("signal.raise_signal(signal.SIGSEGV)", project)
    text = "crash: loading in several threads ended the process, by SIGSEGV"
    assert f"{place}{text}\n    {ADVICE['crash']}" in capsys.readouterr().out


@pytest.mark.skipif(os.name == "nt", reason="has no such terminals")
def test_it_says_on_a_terminal_how_far_it_is() -> None:
    import pty  # noqa: PLC0415  # Windows has none

    reader, terminal = pty.openpty()
    with subprocess.Popen(
        [sys.executable, "-m", "threadloader", "check", "user_datasets:made"],
        stdout=subprocess.DEVNULL,
        stderr=terminal,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(map(str, PATHS))},
    ) as process:
        assert process.wait(PATIENCE) == 0
    shown = os.read(reader, 1 << 16).decode()
    os.close(reader)
    os.close(terminal)
    assert shown.startswith("\r\x1b[Ksamples loaded: 1")
    assert shown.endswith("\r\x1b[K")


def test_what_there_was_no_time_for_is_noted(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", "user_datasets:unsafe", "--seconds", "1e-9", "--json"]) == 0
    captured = capsys.readouterr()
    report = json.loads(captured.out)
    assert report["interleavings"] == 0
    assert "places at which threads can meet were left out for lack of time" in report["notes"][0]
    assert captured.err == ""  # how far it is, is for a terminal


def test_json_has_all_of_a_finding(capsys: pytest.CaptureFixture[str], project: Path) -> None:
    options = ["--index", "2", "--index", "3", "--json"]
    assert main(["check", "user_datasets:unsafe", *options]) == 1
    report = json.loads(capsys.readouterr().out)
    (finding,) = report["findings"]
    assert set(finding) == {"kind", "message", "advice", "file", "line", "index"}
    assert finding["file"] == str(project / "user_datasets.py")
    assert finding["index"] in {2, 3}
    assert report["dataset"] == "user_datasets:unsafe"
    assert report["loads"] == 6
    assert report["interleavings"] > 0


@pytest.mark.parametrize(
    ("target", "text"),
    [
        ("user_datasets:empty", "the dataset has no samples"),
        ("user_datasets:Ending", "the dataset ended the process, with exit code 7"),
        ("user_datasets:Failing --index 1", "no sample could be loaded: KeyError: 1"),
    ],
)
def test_what_can_not_be_checked_exits_with_2_and_one_line(
    target: str, text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["check", *target.split()]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("threadloader check: error: ")
    assert text in line


def test_the_installed_command_imports_from_the_current_folder() -> None:
    code, out, complaints = run_child(
        "import sys; sys.path = [p for p in sys.path if p]; from threadloader.cli import main; "
        "sys.exit(main(['check', 'user_datasets:unsafe']))"
    )
    assert code == 1, complaints
    assert "user_datasets.py:" in out
