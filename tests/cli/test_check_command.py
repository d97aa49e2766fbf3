"""`threadloader check`: which dataset is checked, what is printed and written, and exit codes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest
from support.patience import PATIENCE

from threadloader._check.findings import ADVICE
from threadloader.cli import main

if TYPE_CHECKING:
    from pathlib import Path

MODULE = '''
"""Datasets of a user's."""

import os
import signal


class Reader:
    def __init__(self):
        self.position = 0

    def __copy__(self):  # one for all workers
        return self

    def read(self, index):
        self.position = index
        return self.position


class Unsafe:
    def __init__(self):
        self.reader = Reader()

    def __len__(self):
        return 5

    def __getitem__(self, index):
        return self.reader.read(index)


class Holder:
    rows = [1, 2, 3]


def make():
    return [4, 5, 6]


def broken():
    raise OSError("no disk")


class Crashing(Unsafe):
    inside = 0

    def __getitem__(self, index):
        Crashing.inside += 1
        if Crashing.inside > 1:
            signal.raise_signal(signal.SIGSEGV)
        Crashing.inside -= 1
        return index


class Ending(Unsafe):
    def __getitem__(self, index):
        os._exit(7)


unsafe = Unsafe()
number = 3
empty = []
'''


@pytest.fixture(autouse=True)
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a user's module, which is the current one."""
    (tmp_path / "user_datasets.py").write_text(MODULE, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    monkeypatch.delitem(sys.modules, "user_datasets", raising=False)
    return tmp_path


@pytest.mark.parametrize("name", ["make", "Holder.rows"])
def test_a_safe_dataset_exits_with_0(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", f"user_datasets:{name}"]) == 0
    assert f"user_datasets:{name}: nothing found (9 samples" in capsys.readouterr().out


@pytest.mark.parametrize("name", ["unsafe", "Unsafe"])
def test_an_unsafe_dataset_exits_with_1_and_names_file_and_line(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["check", f"user_datasets:{name}"]) == 1
    out = capsys.readouterr().out
    line = MODULE.splitlines().index("        self.position = index") + 1
    assert f"user_datasets.py:{line}: shared-attribute: dataset.reader.position is shared" in out
    assert ADVICE["shared-attribute"] in out
    assert "1 finding (" in out


@pytest.mark.skipif(os.name == "nt", reason="its processes do not end by signals")
def test_a_dataset_that_ends_the_process_is_a_finding_with_the_line(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["check", "user_datasets:Crashing"]) == 1
    out = capsys.readouterr().out
    line = MODULE.splitlines().index("            signal.raise_signal(signal.SIGSEGV)") + 1
    text = f"user_datasets.py:{line}: crash: loading in several threads ended the process, by"
    assert f"{text} SIGSEGV\n    {ADVICE['crash']}" in out


@pytest.mark.parametrize("terminal", [True, False])
def test_it_says_on_a_terminal_how_far_it_is(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, *, terminal: bool
) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: terminal)
    assert main(["check", "user_datasets:unsafe"]) == 1
    shown = capfd.readouterr().err
    assert ("samples loaded: 1" in shown) == terminal


def test_what_there_was_no_time_for_is_noted(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", "user_datasets:unsafe", "--seconds", "1e-9", "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["interleavings"] == 0
    assert "places at which threads can meet were left out for lack of time" in report["notes"][0]


def test_the_samples_can_be_chosen(capsys: pytest.CaptureFixture[str]) -> None:
    main(["check", "user_datasets:Unsafe", "--index", "2", "--index", "3", "--json"])
    (finding,) = json.loads(capsys.readouterr().out)["findings"]
    assert finding["index"] in {2, 3}


def test_other_copies_of_the_dataset_can_be_asked_for() -> None:
    assert main(["check", "user_datasets:unsafe", "--dataset-copy", "deep"]) == 0


@pytest.mark.parametrize(
    ("target", "text"),
    [
        ("user_datasets", "does not name a dataset: MODULE:NAME or FILE.py:NAME"),
        ("user_datasets:", "does not name a dataset: MODULE:NAME or FILE.py:NAME"),
        ("no_such_module:rows", "there is no module no_such_module"),
        ("no_such_file.py:rows", "there is no file no_such_file.py"),
        ("user_datasets:no_such_name", "user_datasets has no no_such_name"),
        ("user_datasets:broken", "failed: OSError: no disk ("),
        ("user_datasets:number", "is of type int, and no dataset"),
        ("user_datasets:empty", "the dataset has no samples"),
        ("user_datasets:Ending", "the dataset ended the process, with exit code 7"),
    ],
)
def test_what_can_not_be_checked_exits_with_2_and_one_line(
    target: str, text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["check", target]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("threadloader check: error: ")
    assert text in line


def test_a_dataset_of_a_file_is_found(capsys: pytest.CaptureFixture[str], project: Path) -> None:
    assert main(["check", f"{project / 'user_datasets.py'}:unsafe"]) == 1
    assert "user_datasets.py:" in capsys.readouterr().out


def test_json_has_all_of_a_finding(capsys: pytest.CaptureFixture[str], project: Path) -> None:
    assert main(["check", "user_datasets:unsafe", "--json"]) == 1
    report = json.loads(capsys.readouterr().out)
    (finding,) = report["findings"]
    assert set(finding) == {"kind", "message", "advice", "file", "line", "index"}
    assert finding["file"] == str(project / "user_datasets.py")
    assert report["dataset"] == "user_datasets:unsafe"
    assert report["loads"] > 0
    assert report["interleavings"] > 0


def test_the_installed_command_imports_from_the_current_folder(project: Path) -> None:
    code = "import sys; sys.path = [p for p in sys.path if p]; from threadloader.cli import main; "
    code += "sys.exit(main(['check', 'user_datasets:unsafe']))"
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=project,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    assert done.returncode == 1, done.stderr
    assert "user_datasets.py:" in done.stdout
