"""The figures of the README and the documentation are those of benches/results."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest
from support.patience import PATIENCE

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "benches" / "results"
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


def run(*arguments: str, ends_with: int = 0) -> None:
    """Run Python where benches are found: the checkout is hidden from the tests themselves."""
    hiding = ("PYTHONSAFEPATH", "PYTHONPATH")
    env = {name: value for name, value in os.environ.items() if name not in hiding}
    command = [sys.executable, *arguments]
    done = subprocess.run(
        command, cwd=ROOT, env=env, capture_output=True, text=True, timeout=PATIENCE, check=False
    )
    assert done.returncode == ends_with, done.stdout + done.stderr


def test_all_figures_and_pictures_are_written_from_the_results() -> None:
    run("-m", "benches.figures", "--check")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_every_block_of_figures_ends(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    markers = re.findall(r"<!-- (figures: \w+|end of figures) -->", text)
    assert [marker == "end of figures" for marker in markers] == [False, True] * (len(markers) // 2)


@pytest.mark.parametrize("picture", sorted(RESULTS.glob("*.svg")), ids=lambda path: path.name)
def test_a_picture_is_well_formed_and_has_colours_for_dark_pages(picture: Path) -> None:
    text = picture.read_text(encoding="utf-8")
    assert ET.fromstring(text).tag.endswith("svg")  # noqa: S314  # our own file
    assert "prefers-color-scheme: dark" in text or picture.stem.endswith(("-light", "-dark"))


def test_every_lane_of_the_results_has_figures_or_says_why_not() -> None:
    told = json.loads((RESULTS / "bench.json").read_text(encoding="utf-8"))
    for contest in told["contests"]:
        for lane in contest["lanes"]:
            name = (contest["build"], contest["workload"], lane["loader"], lane["workers"])
            assert lane.get("rate") or lane.get("error"), name


@pytest.mark.parametrize(("copy", "ends_with"), [("auto", 0), ("shared", 1)])
def test_the_bench_of_state_finds_samples_that_mix_and_no_others(copy: str, ends_with: int) -> None:
    kinds = ("buffers", "files", "generators")
    options = ("--seconds", "0", "--copy", copy, "--kinds", *kinds)
    run("-m", "benches.stateful", *options, ends_with=ends_with)
