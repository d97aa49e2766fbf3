"""`threadloader bench` and `demo`: their table and file, and how each failure ends."""

from __future__ import annotations

import json
import os
import platform
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from support.child import running
from support.patience import PATIENCE

from threadloader import _torch
from threadloader.cli import demo, main
from threadloader.cli.race import ROUNDS

# A batch that is the whole dataset; each loader delivers a few batches.
TIMES = ["--seconds", "0.03", "--batch-size", "3"]
TINY = [*TIMES, "--threads", "0", "2", "--workers", "0"]


def ran(capsys: pytest.CaptureFixture[str], *arguments: object) -> list[str]:
    assert main([str(argument) for argument in arguments]) == 0
    captured = capsys.readouterr()
    assert captured.err == ""
    return captured.out.splitlines()


def names_in(lines: list[str]) -> list[str]:
    return [re.split(" {2,}", line)[0] for line in lines if re.search(r" m?s$", line)]


def expected_loaders(*threads: str) -> list[str]:
    torch = ["torch DataLoader, 0 workers"] if _torch.AVAILABLE else []
    ours = [f"ThreadLoader, {number} threads" for number in threads or ("0", "2")]
    return ["bare loop", *torch, *ours, "ThreadLoader, its default"]


def test_the_table_and_the_file_have_each_loader(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = ["--json", tmp_path / "rounds.json"]
    lines = ran(capsys, "bench", "user_datasets:unsafe", *TINY, *file)
    assert names_in(lines) == expected_loaders()
    told = "\n".join(lines).replace("\n  ", " ")
    assert platform.python_version() in told
    for words, said in (
        (" 1.00x ", True),
        ("The winner is ", True),
        ("The default had ", True),
        ("torch is not installed", not _torch.AVAILABLE),
    ):
        assert (words in told) == said, words
    beside = re.findall(r"with (\S+) of the default's rate", told)
    assert all(float(ratio) >= 1.0 for ratio in beside), "a winner is not slower"
    content = json.loads((tmp_path / "rounds.json").read_text(encoding="utf-8"))
    assert [loader["name"] for loader in content["loaders"]] == expected_loaders()
    for loader in content["loaders"]:
        assert len(loader["rounds"]) == ROUNDS
        assert all(figure["rate"] > 0 < figure["first"] for figure in loader["rounds"])
    assert all(threads >= 1 for threads, _ in content["threads_chosen"])


@pytest.mark.parametrize("name", ["user_datasets.py:Numbers", "user_datasets:Holder.rows"])
def test_output_that_is_piped_has_no_control_characters_and_fits_80_columns(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    options = [*TIMES, "--threads", "0", "--workers", "0", "--collate", "user_datasets:collate"]
    for line in ran(capsys, "bench", name, *options):
        assert line.isprintable()
        assert len(line) <= 80
        assert line == line.rstrip()


@pytest.mark.skipif(not _torch.AVAILABLE, reason="compares with torch")
@pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork:DeprecationWarning")
def test_a_loader_of_torch_s_that_fails_is_left_out(capsys: pytest.CaptureFixture[str]) -> None:
    options = [*TIMES, "--threads", "2", "--workers", "0", "1"]
    lines = ran(capsys, "bench", "user_datasets:ForThreads", *options)
    assert names_in(lines) == expected_loaders("2")
    assert "torch DataLoader, 1 worker failed and is left out: ValueError" in "\n".join(lines)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ("user_datasets:Stream", "is of type Stream; bench needs __getitem__ and __len__"),
        ("user_datasets:empty", "is empty"),
        ("user_datasets:Failing", "[1] failed: KeyError: 1"),
        ("user_datasets:made --collate user_datasets:nothing", "has no attribute 'nothing'"),
        ("user_datasets:made --collate user_datasets:broken", "made failed: TypeError: broken()"),
    ],
)
def test_what_can_not_be_raced_is_one_line_and_exits_with_2(
    arguments: str, words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["bench", *arguments.split(), *TINY]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("threadloader bench: error: ")
    assert words in line


# When Ctrl-C comes: as loaders run, or while a worker of torch's starts that has not been forked.
MOMENTS = [("Numbers", "600", "Dataset")]
if _torch.AVAILABLE and sys.version_info >= (3, 14):
    MOMENTS.append(("Starting", "0.03", "Starting"))


@pytest.mark.skipif(sys.platform == "win32", reason="signals of POSIX")
@pytest.mark.parametrize(("dataset", "seconds", "said"), MOMENTS)
def test_ctrl_c_in_the_terminal_ends_every_process_without_a_traceback(
    dataset: str, seconds: str, said: str
) -> None:
    command = [sys.executable, "-m", "threadloader", "bench", f"user_datasets:{dataset}"]
    command += ["--seconds", seconds, "--workers", "2", "--threads", "2"]
    with running(*command, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        for line in process.stdout:
            if line.startswith(said):
                break
        os.killpg(process.pid, signal.SIGINT)
        _, err = process.communicate(timeout=PATIENCE)
    # Both are 130 for a shell.  If Ctrl-C comes up in an ``eval`` of a string (a namedtuple is made
    # by one as a module is imported), CPython ends the process by SIGINT after its own exit, also
    # where the program has caught it.  Source: ``unhandled_keyboard_interrupt`` in pythonrun.c.
    assert process.returncode in (130, -signal.SIGINT)
    assert err == "threadloader bench: interrupted\n"


def test_the_demo_loads_photos_that_it_makes(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    image = pytest.importorskip("PIL.Image", reason="the demo decodes images with Pillow")
    monkeypatch.setattr(demo, "PHOTOS", 4)
    lines = ran(capsys, "demo", *TIMES, "--size", "8", "--threads", "0")
    assert names_in(lines) == expected_loaders("0")
    assert "photos, decoded by " in lines[2]
    demo.make_photos(tmp_path / "photos")
    for path in (tmp_path / "photos").iterdir():
        assert 40_000 < path.stat().st_size < 80_000
        with image.open(path) as photo:
            assert (photo.size, photo.mode) == ((500, 375), "RGB")


def test_without_pillow_the_demo_says_how_to_install_it(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    missing: Any = None
    monkeypatch.setitem(sys.modules, "PIL", missing)  # as the import system marks what is absent
    assert main(["demo"]) == 1
    assert "pip install pillow (extra: demo)" in capsys.readouterr().err
