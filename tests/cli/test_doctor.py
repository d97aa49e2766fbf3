"""`threadloader doctor`: what it prints, and what it advises."""

from __future__ import annotations

import json
import platform
import re
import tomllib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from packaging.requirements import Requirement

import threadloader
from threadloader import _torch
from threadloader._threads.gil_switch import is_free_threaded
from threadloader._threads.machine import default_threads, usable_cores
from threadloader._threads.tuner import gil_is_enabled
from threadloader.cli import main
from threadloader.cli.doctor import advice, examine


def test_it_prints_aligned_lines_of_at_most_80_columns_unless_a_word_is_longer(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["doctor"]) == 0
    lines = capsys.readouterr().out.splitlines()
    for line in lines:
        assert line.isprintable()
        assert len(line) <= 80 or len(line.split()) == 1
    names = [line.split()[0] for line in lines if not line.startswith((" ", "*")) and line]
    assert {"Python", "Gil", "Cores", "Versions", "Torch"} <= set(names)
    text = "\n".join(lines)
    assert f"version {platform.python_version()}" in text
    assert f"numpy {np.__version__}" in text
    assert f"usable {usable_cores()}" in text


def test_json_is_what_was_found_and_the_advice(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["python"]["version"] == platform.python_version()
    assert told["python"]["free_threaded"] == is_free_threaded()
    assert told["gil"]["enabled"] == gil_is_enabled()
    assert told["cores"]["usable"] == usable_cores()
    assert told["cores"]["threads_by_default"] == default_threads()
    assert told["versions"]["threadloader"] == threadloader.__version__
    assert told["torch"] == ("torch" in told["versions"]) == _torch.AVAILABLE
    assert isinstance(told["advice"], list)


PROJECT = Path(__file__).parents[2] / "pyproject.toml"
OFF = {"enabled": False}
ON = {"enabled": True, "requested_by": ""}
FREE, ORDINARY = {"free_threaded": True}, {"free_threaded": False}


@pytest.mark.parametrize(
    ("parts", "text", "said"),
    [
        ({"gil": ON, "python": FREE}, "switched on by an extension module", 1),
        ({"gil": ON | {"requested_by": "-X gil=1"}, "python": FREE}, "because of -X gil=1", 1),
        ({"gil": ON, "python": ORDINARY}, "use a free-threaded build", 1),
        ({"gil": OFF, "python": FREE}, "use a free-threaded build", 0),
        ({"python": FREE, "variables": {"PYTHONDONTWRITEBYTECODE": "1"}}, "Unset PYTHONDONT", 1),
        ({"python": ORDINARY, "variables": {"PYTHONDONTWRITEBYTECODE": "1"}}, "Unset PYTHON", 0),
        ({"decoders": ["simplejpeg", "pillow"]}, "(extra: images)", 0),
        ({"cores": {"usable": 2, "machine": 64}}, "2 of 64 cores", 1),
    ],
)
def test_what_would_make_loading_faster_is_advised(
    parts: dict[str, Any], text: str, said: int
) -> None:
    found = examine()
    for name, values in parts.items():
        found[name] = found[name] | values if isinstance(values, dict) else values
    assert sum(text in advised for advised in advice(found)) == said


def test_the_decoder_that_is_advised_is_what_the_extra_installs_here() -> None:
    project = tomllib.loads(PROJECT.read_text(encoding="utf-8"))["project"]
    extra = map(Requirement, project["optional-dependencies"]["images"])
    here = [each.name for each in extra if each.marker and each.marker.evaluate()]
    told = "\n".join(advice(examine() | {"decoders": ["pillow"]}))
    assert re.findall(r"pip install (\S+) \(extra: images\)", told) == here


def test_modules_of_other_builds_are_named_on_a_free_threaded_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder := tmp_path / "fast-1.0.dist-info").mkdir()
    (folder / "METADATA").write_text("Metadata-Version: 2.1\nName: fast\nVersion: 1.0\n")
    (folder / "RECORD").write_text("fast/_core.abi3.so,,\nfast/_core.abi3t.so,,\n")
    (tmp_path / "fast").mkdir()
    for name in ("_core.abi3.so", "_core.abi3t.so"):
        (tmp_path / "fast" / name).touch()
    monkeypatch.syspath_prepend(tmp_path)
    found = examine()
    named = is_free_threaded()
    assert found["wrong_builds"] == ["fast/_core.abi3.so"] * named
    assert sum("fast/_core.abi3.so" in text for text in advice(found)) == named
