"""The scripts of docs/frameworks.md: killed in the middle of an epoch, and started again."""

from __future__ import annotations

import random
import sys
from pathlib import Path

import pytest
from support.recipes import add_program, block, check_same_as_one_process, project, run

pytest.importorskip("torch")
pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the recipes are for Linux")


@pytest.mark.scale_out
def test_torchrun_starts_ddp_again_in_the_middle_of_an_epoch(tmp_path: Path) -> None:
    project(tmp_path, "train_ddp.py", "start torchrun")
    run(["bash", "start torchrun"], tmp_path, KILL="0:1:9")  # rank 1, in its 9th step
    check_same_as_one_process(tmp_path, begins=[0, 8])


@pytest.mark.scale_out
def test_fsdp_goes_on_in_the_middle_of_an_epoch(tmp_path: Path) -> None:
    project(tmp_path, "train_fsdp.py")
    command = block("start torchrun").replace("train_ddp", "train_fsdp")
    (tmp_path / "start").write_text(command, encoding="utf-8")
    run(["bash", "start"], tmp_path, KILL="0:0:4")
    check_same_as_one_process(tmp_path, begins=[0, 2])


SRUN = """#!{python}
# Stands for SLURM's: starts the tasks of this allocation.
import os, subprocess, sys
tasks = int(os.environ["SLURM_NTASKS"])
started = [
    subprocess.Popen(
        sys.argv[1:], env=os.environ | {{"SLURM_PROCID": str(task), "SLURM_LOCALID": str(task)}}
    )
    for task in range(tasks)
]
sys.exit(max(process.wait() for process in started))
"""
SCONTROL = """#!/bin/sh
echo 127.0.0.1
"""


@pytest.mark.scale_out
def test_a_job_of_slurm_loads_what_one_process_does(tmp_path: Path) -> None:
    project(tmp_path, "train_ddp.py", "job.sh")
    for name, code in {"srun": SRUN.format(python=sys.executable), "scontrol": SCONTROL}.items():
        add_program(tmp_path / "programs" / name, code)
    allocation = {
        "SLURM_JOB_ID": str(random.randrange(10_000)),
        "SLURM_JOB_NODELIST": "node",
        "SLURM_NTASKS": "2",
    }
    run(["bash", "job.sh"], tmp_path, **allocation)
    check_same_as_one_process(tmp_path, begins=[0])
