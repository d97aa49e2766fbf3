"""`threadloader run` on scripts of Lightning and transformers, which make loaders of their own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")

from support.child import PATHS
from support.patience import PATIENCE

TRAINING = Path(__file__).parents[1] / "support" / "training"


def run(*arguments: object) -> tuple[str, str]:
    """Run the interpreter; return what it wrote."""
    done = subprocess.run(
        [sys.executable, "-W", "ignore", *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=2 * PATIENCE,
        check=False,
        env=os.environ | {"PYTHONPATH": str(PATHS[0])},
    )
    assert done.returncode == 0, done.stderr
    return done.stdout, done.stderr


def both(tmp_path: Path, script: Path, *arguments: object) -> list[dict[str, Any]]:
    """Run a script without threads and with them, compare, and return the loaders."""
    expected, _ = run(script, *arguments)
    report = tmp_path / "report.json"
    got, _ = run("-m", "threadloader", "run", "--json", report, script, *arguments)
    assert got == expected
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
