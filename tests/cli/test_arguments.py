"""The command line: what can't be had ends a command with one line and an exit code."""

from __future__ import annotations

import pytest

from threadloader.cli import main


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("user_datasets", "does not name a dataset: MODULE:NAME or FILE.py:NAME"),
        ("not\nprintable:", r"'not\nprintable:' does not name a dataset"),
        ("no_such_module:rows", "No module named 'no_such_module'"),
        ("no_such_file.py:rows", "there is no file no_such_file.py"),
        ("user_datasets:nothing", "has no attribute 'nothing'"),
        ("user_datasets:broken", "failed: OSError: no disk ("),
        ("user_datasets:number", "is of type int, and no dataset"),
    ],
)
@pytest.mark.parametrize("command", ["bench", "check"])
def test_a_dataset_that_there_is_not_is_one_line_and_exits_with_2(
    command: str, name: str, text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([command, name]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"threadloader {command}: error: ")
    assert text in line


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        *(("", "COMMAND"), ("demonstrate", "COMMAND"), ("demo --threads -1", "--threads")),
        *(("demo --size 1.5", "--size"), ("check a:b --seconds 0", "--seconds")),
        *(("bench a:b --seconds nan", "--seconds"), ("run --steps 0 a.py", "--steps")),
    ],
)
def test_wrong_arguments_exit_with_2_and_are_named(
    arguments: str, named: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as exited:
        main(arguments.split())
    assert exited.value.code == 2
    assert named in capsys.readouterr().err.splitlines()[-1]
