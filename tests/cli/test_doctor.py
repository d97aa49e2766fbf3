"""`threadloader doctor`: what it prints, and what it advises."""

from __future__ import annotations

import json
import os
import platform
import sys
import sysconfig
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import threadloader
from threadloader import _torch
from threadloader.cli.environment import advice, examine
from threadloader._threads.concurrency import gil_is_enabled
from threadloader._threads.cores import default_threads, usable_cores
from threadloader._tuning.tuner import gil_is_enabled
from threadloader.cli import main

if TYPE_CHECKING:
    from pathlib import Path

FREE_THREADED = bool(sysconfig.get_config_var("Py_GIL_DISABLED"))


@pytest.fixture(scope="module")
def found() -> dict[str, Any]:
    return examine()


def test_it_prints_aligned_lines_of_at_most_80_columns_unless_a_word_is_longer(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["doctor"]) == 0
    lines = capsys.readouterr().out.splitlines()
    for line in lines:
        assert line.isprintable()
        assert len(line) <= 80 or len(line.split()) == 1
    names = [line[:10].strip() for line in lines if not line.startswith((" ", "*")) and line]
    expected = ["Python", "System", "GIL", "Cores", "Threads", "Versions", "Decoders", "Set"]
    assert names == expected[: len(names)]
    assert len(names) >= len(expected) - 1
    text = "\n".join(lines)
    assert platform.python_version() in text
    assert f"numpy {np.__version__}" in text


def test_json_is_what_was_found_and_the_advice(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["python"]["version"] == platform.python_version()
    assert told["python"]["free_threaded"] == FREE_THREADED
    assert told["gil"]["enabled"] == gil_is_enabled()
    assert told["cores"]["machine"] == os.cpu_count()
    assert told["cores"]["usable"] == usable_cores()
    assert told["cores"]["threads_by_default"] == default_threads()
    assert told["versions"]["threadloader"] == threadloader.__version__
    assert told["torch"] == ("torch" in told["versions"]) == _torch.AVAILABLE
    assert isinstance(told["advice"], list)


def test_a_module_of_the_users_is_imported_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "mine_for_doctor.py").touch()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    assert main(["doctor", "--import", "mine_for_doctor"]) == 0
    assert sys.modules.pop("mine_for_doctor")


def test_a_module_that_can_not_be_imported_exits_with_2(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["doctor", "--import", "no_such_module"]) == 2
    assert "can't import no_such_module: ModuleNotFoundError" in capsys.readouterr().err


def changed(found: dict[str, Any], **parts: dict[str, Any]) -> dict[str, Any]:
    return found | {name: found[name] | values for name, values in parts.items()}


def test_the_import_that_switched_the_gil_on_is_named_in_the_advice(found: dict[str, Any]) -> None:
    gil = {"enabled": True, "requested_by": "", "switched_on_by": ["triton._C.libtriton"]}
    told = changed(found, gil=gil, python={"free_threaded": True})
    assert "switched on by triton._C.libtriton" in advice(told)[0]


def test_a_gil_that_was_asked_for_is_said_to_be(found: dict[str, Any]) -> None:
    gil = {"enabled": True, "requested_by": "PYTHON_GIL=1", "switched_on_by": []}
    told = changed(found, gil=gil, python={"free_threaded": True})
    assert advice(told)[0] == "The GIL is on because of PYTHON_GIL=1: unset it."


def test_an_ordinary_build_is_advised_of_a_free_threaded_one(found: dict[str, Any]) -> None:
    gil = {"enabled": True, "requested_by": "", "switched_on_by": []}
    told = changed(found, gil=gil, python={"free_threaded": False})
    assert "free-threaded build" in advice(told)[0]


def test_missing_pyc_files_matter_on_a_free_threaded_build(found: dict[str, Any]) -> None:
    told = changed(
        found,
        gil={"enabled": False},
        python={"free_threaded": True},
        variables={"PYTHONDONTWRITEBYTECODE": "1"},
    )
    assert any("PYTHONDONTWRITEBYTECODE" in text for text in advice(told))
    told = changed(told, python={"free_threaded": False})
    assert not any("PYTHONDONTWRITEBYTECODE" in text for text in advice(told))


def test_a_slow_decoder_and_a_quota_are_advised_of(found: dict[str, Any]) -> None:
    told = changed(found, cores={"usable": 2, "machine": 64}) | {"decoders": ["pillow"]}
    texts = advice(told)
    assert any("(extra: images)" in text for text in texts)
    assert any("2 of 64 cores" in text for text in texts)


def test_neither_rich_nor_pillow_is_needed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("rich", "PIL"):
        monkeypatch.setitem(sys.modules, name, None)  # as the import system marks what is absent
    assert main(["doctor"]) == 0
    assert "none: Pillow is not installed" in capsys.readouterr().out


def test_a_build_without_wheels_of_the_newest_packages_is_told_how_to_install(
    found: dict[str, Any],
) -> None:
    for version, said in (("3.13.5", True), ("3.14.1", False)):
        told = {**found, "python": {**found["python"], "free_threaded": True, "version": version}}
        assert any("--only-binary=:all:" in text for text in advice(told)) == said
