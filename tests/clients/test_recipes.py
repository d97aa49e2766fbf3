"""The scripts of docs/frameworks.md for frameworks: killed within an epoch, and run again."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from support.recipes import check_all_once, check_same_as_one_process, project, run

pytest.importorskip("torch")
pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the recipes are for Linux")


def test_lightning_goes_on_in_the_middle_of_an_epoch_on_two_ranks(tmp_path: Path) -> None:
    pytest.importorskip("lightning")
    project(tmp_path, "train_lightning.py")
    cpu = {"CUDA_VISIBLE_DEVICES": ""}
    command = ["python", "train_lightning.py"]
    run(command, tmp_path, fails=True, LIFE="0", KILL="0:all:9", **cpu)
    run(command, tmp_path, LIFE="1", **cpu)
    check_same_as_one_process(tmp_path, begins=[0, 8])


def test_accelerate_goes_on_in_the_middle_of_an_epoch_on_two_ranks(tmp_path: Path) -> None:
    pytest.importorskip("accelerate")
    project(tmp_path, "train_accelerate.py", "start accelerate")
    cpu = {"ACCELERATE_USE_CPU": "true", "CUDA_VISIBLE_DEVICES": ""}
    command = ["bash", "start accelerate"]
    run(command, tmp_path, fails=True, LIFE="0", KILL="0:all:9", **cpu)
    run(command, tmp_path, LIFE="1", **cpu)
    check_all_once(tmp_path, begins=[0, 8])
