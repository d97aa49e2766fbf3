"""`threadloader check`: what is printed and written of a dataset, and its exit codes."""

from __future__ import annotations

import os
import signal
import sys
from io import StringIO
from pathlib import Path

import pytest
from support.child import run_child

from threadloader._check.findings import ADVICE
from threadloader.cli import main


def line_of(text: str, project: Path) -> int:
    lines = (project / "user_datasets.py").read_text(encoding="utf-8").splitlines()
    return [line.strip() for line in lines].index(text) + 1


@pytest.mark.parametrize(
    ("arguments", "code", "told"),
    [
        ("made", 0, ["user_datasets:made: nothing found (6 samples"]),
        ("made --dataset-copy deep", 0, ["nothing found"]),
        ("Failing", 0, ["note: 2 of 5 samples raise an error; the first one, of index 1: KeyErr"]),
        ("stream", 0, ["note: one thread reads an iterator"]),
        ("unsafe --index 2 --index 3", 1, ["(4 samples loaded one by one, "]),
        (
            "unsafe --seconds 1e-9",
            0,
            [
                "note: 4 of 5 samples were left out for lack of time",
                "note: 10 of 10 rounds of many threads were left out for lack of time",
                "user_datasets:unsafe: nothing found in what was looked at, see the notes (2 sam",
            ],
        ),
        (
            "unsafe",
            1,
            [
                "shared-attribute: dataset.reader.position is shared by all workers: index ",
                ADVICE["shared-attribute"],
                "user_datasets:unsafe: 1 finding (",
            ],
        ),
        ("empty", 2, ["threadloader check: error: user_datasets:empty: the dataset has no samp"]),
        ("Failing --index 1", 2, ["Failing: no sample could be loaded: KeyError: 1"]),
    ],
)
def test_it_says_what_was_found_and_exits_with_0_1_or_2(
    arguments: str, code: int, told: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["check", *f"user_datasets:{arguments}".split()]) == code
    captured = capsys.readouterr()
    output, nothing = (captured.err, captured.out)[:: 1 if code == 2 else -1]
    assert [text for text in told if text not in output] == []
    assert nothing == ""  # how far it is, is for a terminal


def test_it_says_in_lines_how_far_it_is_where_there_is_no_terminal(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("threadloader.cli.check.LINE_SECONDS", 0.0)
    assert main(["check", "user_datasets:made"]) == 0
    assert "\nthreadloader check: samples loaded: 6\n" in capsys.readouterr().err


def test_it_says_on_a_terminal_how_far_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = StringIO()
    monkeypatch.setattr(terminal, "isatty", lambda: True)
    monkeypatch.setattr(sys, "stderr", terminal)
    assert main(["check", "user_datasets:made"]) == 0
    shown = terminal.getvalue()
    assert shown.startswith("\r\x1b[Ksamples loaded: 1")
    assert shown.endswith("\r\x1b[K")


@pytest.mark.skipif(os.name == "nt", reason="its processes do not end by signals")
def test_the_installed_command_shows_the_line_that_ends_the_process(project: Path) -> None:
    # It does not begin with the current folder in its path.
    code, _, complaints = run_child(
        "import sys; sys.path = [p for p in sys.path if p]; sys.modules['torch'] = None; "
        "from threadloader.cli import main; "
        "sys.exit(main(['check', 'user_datasets:Crashing']))"
    )
    assert code == -signal.SIGSEGV
    line = line_of("faulthandler._sigsegv()  # no other thread runs meanwhile", project)
    assert f'user_datasets.py", line {line} in __getitem__' in complaints
