"""``threadloader top``: another process looks into one that was not prepared for it."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from support.patience import PATIENCE

from threadloader.cli import main

pytestmark = pytest.mark.skipif(os.name == "nt", reason="signals and terminals of POSIX")

# Its sample 137 never ends; or its loop does nothing behind batch 3.
SCRIPT = """
import sys, threading
from threadloader import ThreadLoader

class Photos:
    def __len__(self):
        return 4000

    def __getitem__(self, index):
        if index == 137 and sys.argv[1] == "sample":
            self.wait_for_ever()
        return index

    def wait_for_ever(self):
        threading.Event().wait()

loader = ThreadLoader(Photos(), 4, threads=2, output="numpy")
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


def test_a_sample_that_hangs_is_shown_with_its_line(capsys: pytest.CaptureFixture[str]) -> None:
    told, end = "", time.perf_counter() + PATIENCE
    with running("sample") as pid:
        while "index 137" not in told and time.perf_counter() < end:  # it may be just before
            assert main(["top", pid, "--once"]) == 0
            told = capsys.readouterr().out
    for words in ("Photos", "epoch 0, batch 34", "index 137 of batch 34", "in wait_for_ever"):
        assert words in told


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
            while shown.count(b"index 137 of batch 34") < 6:  # twice on each screen
                shown += os.read(leader, 4096)
            top.send_signal(2)
            assert top.wait(PATIENCE) == 130
        os.close(leader)
        assert b"\x1b[H" in shown
    from threadloader._epoch.hanging import FOLDER  # noqa: PLC0415  # of this user

    assert not [*Path(FOLDER).glob(f"{pid}*")]
    assert Path(FOLDER).stat().st_mode & 0o077 == 0


@pytest.mark.parametrize("mode", [0o750, 0o707])
def test_a_folder_that_others_may_enter_is_not_used(
    mode: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "asked"
    folder.mkdir()
    folder.chmod(mode)
    monkeypatch.setattr("threadloader._epoch.hanging.FOLDER", str(folder))
    assert main(["top", str(os.getpid()), "--once"]) == 2
    assert "is not a folder of yours alone" in capsys.readouterr().err
    assert not [*folder.iterdir()]


def test_there_must_be_such_a_process(capsys: pytest.CaptureFixture[str]) -> None:
    with subprocess.Popen([sys.executable, "-c", ""]) as ended:
        pass
    assert main(["top", str(ended.pid)]) == 2
    assert "there is no process" in capsys.readouterr().err
