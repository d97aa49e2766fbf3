"""`threadloader doctor`: what it prints, and what it advises."""

from __future__ import annotations

import json
import platform
from typing import Any

import numpy as np
import pytest

import threadloader
from threadloader import _torch
from threadloader._threads.gil_switch import is_free_threaded
from threadloader._tuning.machine import default_threads, usable_cores
from threadloader._tuning.tuner import gil_is_enabled
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
        ({"python": FREE | {"version": "3.13.5"}}, "--only-binary=:all:", 1),
        ({"python": FREE | {"version": "3.14.1"}}, "--only-binary=:all:", 0),
        ({"decoders": ["pillow"]}, "(extra: images)", 1),
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
