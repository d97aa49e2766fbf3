"""`threadloader run` on scripts of Lightning and transformers, which make loaders of their own."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")

from support.child import run_python

TRAINING = Path(__file__).parents[1] / "support" / "training"


def both(tmp_path: Path, script: Path, *arguments: object) -> list[dict[str, Any]]:
    """Run a script without threads and with them, compare, and return the loaders."""
    expected = run_python("-W", "ignore", script, *arguments)
    report = tmp_path / "report.json"
    run = ("-m", "threadloader", "run", "--json", report)
    got = run_python("-W", "ignore", *run, script, *arguments)
    for each in (expected, got):
        assert each.returncode == 0, each.stderr
    assert got.stdout == expected.stdout
    loaders: list[dict[str, Any]] = json.loads(report.read_text(encoding="utf-8"))["loaders"]
    return loaders


@pytest.mark.parametrize("workers", ["0", "2"])
@pytest.mark.parametrize("strategy", ["auto", "ddp"])
def test_lightning_has_the_same_batches_and_losses(
    workers: str, strategy: str, tmp_path: Path
) -> None:
    pytest.importorskip("lightning")
    loaders = both(tmp_path, TRAINING / "lightning_fit.py", workers, strategy)
    assert len(loaders) == 3
    assert all("lightning_fit.py" in loader["made_at"] for loader in loaders)
    assert all("thread" in loader["loaded_by"] for loader in loaders)


@pytest.mark.parametrize("workers", ["0", "2"])
def test_the_trainer_of_transformers_has_the_same_batches_and_losses(
    workers: str, tmp_path: Path
) -> None:
    pytest.importorskip("transformers")
    pytest.importorskip("accelerate")
    loaders = both(tmp_path, TRAINING / "trainer_fit.py", workers, tmp_path / "out")
    assert len(loaders) == 2
    assert all("thread" in loader["loaded_by"] for loader in loaders)
    assert all("trainer_fit.py" in loader["made_at"] for loader in loaders)
