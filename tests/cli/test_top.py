"""``threadloader top``: another process looks into one that was not prepared for it."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from support.patience import PATIENCE

from threadloader._tuning.tuner import gil_is_enabled
from threadloader.cli import main

pytestmark = pytest.mark.skipif(os.name == "nt", reason="signals and terminals of POSIX")

# Its sample 137 never ends, and its index may have no text; or its loop waits behind batch 3.
SCRIPT = """
import sys, threading
from threadloader import ThreadLoader

class Photos:
    def __len__(self):
        return 4000

    def __getitem__(self, index):
        if index == 137 and sys.argv[1] != "loop":
            self.wait_for_ever()
        return index

    def wait_for_ever(self):
        threading.Event().wait()

class Index(int):
    def __repr__(self):
        raise ValueError

indices = list(map(Index if sys.argv[1] == "text" else int, range(4000)))
loader = ThreadLoader(Photos(), 4, sampler=indices, threads=2, output="numpy")
for number, batch in enumerate(loader):
    if number == 3:
        print("loads", flush=True)
        if sys.argv[1] == "loop":
            threading.Event().wait()
"""


@contextmanager
def running(what: str, **environment: str) -> Iterator[str]:
    """Run the script beside this process; yield its process ID."""
    command = [sys.executable, "-c", SCRIPT, what]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, text=True, env=os.environ | environment
    ) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "loads\n"
            yield str(process.pid)
        finally:
            process.kill()


def told_once(
    pid: str, words: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> str:
    """Return a screen that has the words, which are no longer to be waited for."""
    monkeypatch.setattr("threadloader.cli.top.SILENT_SECONDS", PATIENCE)
    end = time.perf_counter() + PATIENCE
    while time.perf_counter() < end:
        assert main(["top", pid, "--once"]) == 0
        told = capsys.readouterr().out
        if words in told:
            return told
    return ""


def test_a_sample_that_hangs_is_shown_with_its_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with running("sample") as pid:
        told = told_once(pid, "index 137 of batch 34", monkeypatch, capsys)
        assert told_once(pid, "index 137", monkeypatch, capsys), "it goes on to answer"
    assert "Photos" in told
    assert "  batch 34, " in told
    assert ("in wait_for_ever" in told) == gil_is_enabled()


def test_an_index_that_has_no_text_does_no_harm_to_the_loop(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("threadloader.cli.top.SILENT_SECONDS", 0.5)
    with running("text") as pid:
        assert main(["top", pid, "--once"]) == 1
    assert "has asked for a batch" in capsys.readouterr().out


@pytest.mark.parametrize(("what", "off"), [("loop", {}), ("sample", {"THREADLOADER_TOP": "0"})])
def test_who_does_not_load_or_must_not_tell_is_said_to_be_silent(
    what: str,
    off: dict[str, str],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr("threadloader.cli.top.SILENT_SECONDS", 0.5)
    with running(what, **off) as pid:
        assert main(["top", pid, "--once"]) == 1
    assert "has asked for a batch, or waited for one" in capsys.readouterr().out


def test_a_screen_follows_the_other_until_ctrl_c_and_leaves_nothing_behind() -> None:
    pty = pytest.importorskip("pty")
    leader, follower = pty.openpty()
    command = [sys.executable, "-m", "threadloader", "top", "--seconds", "0.1"]
    with running("sample") as pid:
        with subprocess.Popen([*command, pid], stdout=follower, stderr=follower) as top:
            os.close(follower)
            shown = b""
            while shown.count(b"index 137 of batch 34") < 3:
                assert select.select([leader], [], [], PATIENCE)[0]
                shown += os.read(leader, 4096)
            top.send_signal(signal.SIGINT)
            assert top.wait(PATIENCE) == 0
        os.close(leader)
        assert b"\x1b[H" in shown
    from threadloader._epoch.asked import FOLDER  # noqa: PLC0415  # of this user

    assert not [*Path(FOLDER).glob(f"{pid}*")]
    assert Path(FOLDER).stat().st_mode & 0o077 == 0


@pytest.mark.parametrize("mode", [0o750, 0o707])
def test_a_folder_that_others_may_enter_is_not_used(
    mode: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "asked"
    folder.mkdir()
    folder.chmod(mode)
    monkeypatch.setattr("threadloader._epoch.asked.FOLDER", str(folder))
    assert main(["top", str(os.getpid()), "--once"]) == 2
    assert "is not a folder of yours alone" in capsys.readouterr().err
    assert not [*folder.iterdir()]


def test_there_must_be_such_a_process(capsys: pytest.CaptureFixture[str]) -> None:
    with subprocess.Popen([sys.executable, "-c", ""]) as ended:
        pass
    assert main(["top", str(ended.pid)]) == 2
    assert "there is no process" in capsys.readouterr().err
