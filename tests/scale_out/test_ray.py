"""The script of docs/frameworks.md for Ray Train, on a local cluster: a worker is killed."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.recipes import check_same_as_one_process, project, run

pytest.importorskip("torch")
pytest.importorskip("ray.train")
pytestmark = pytest.mark.scale_out_long


def test_ray_train_goes_on_in_the_middle_of_an_epoch(tmp_path: Path) -> None:
    project(tmp_path, "train_ray.py")
    run(
        ["python", "train_ray.py"],
        tmp_path,
        KILL="0:1:9",
        RAY_DISABLE_IMPORT_WARNING="1",
        RAY_USAGE_STATS_ENABLED="0",
    )
    # Ray may not have taken the checkpoint of step 8 when its worker is killed.
    check_same_as_one_process(tmp_path, begins=[0, None])
