"""Runs the scripts of docs/frameworks.md as they stand, kills them, and looks what was trained.

What is a user's own comes from a module ``my_project`` that is written beside the script.  Its loss
function writes down the samples of each step, and may kill its process.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from support.child import running
from support.patience import PATIENCE
from threadloader import ThreadLoader

__all__ = ["add_program", "block", "check_all_once", "check_same_as_one_process", "project", "run"]

PAGE = Path(__file__).parents[2] / "docs" / "frameworks.md"
SAMPLES, GLOBAL_BATCH, EPOCHS = 48, 8, 2
STEPS = EPOCHS * SAMPLES // GLOBAL_BATCH

# What pip puts beside this Python, unless torch is installed elsewhere.
PROGRAMS = {
    "python": "",
    "torchrun": "-m torch.distributed.run",
    "accelerate": "-m accelerate.commands.accelerate_cli",
}

PROJECT = """
import json, os, signal
import torch

BATCH_SIZE, EPOCHS, SAVE_EVERY = {batch}, {epochs}, 2

class Drawing:
    def __len__(self):
        return {samples}
    def __getitem__(self, index):
        return index, torch.rand(())

dataset = Drawing()
killed = {folder!r} + "/killed"
life = os.environ.get("LIFE") or str(os.path.getsize(killed) if os.path.exists(killed) else 0)
steps = 0

def make_model():
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(2, 4), torch.nn.Tanh(), torch.nn.Linear(4, 1))

def loss_of(model, batch):
    global steps
    steps += 1
    rank = torch.distributed.get_rank() if torch.distributed.is_initialized() else 0
    index, number = batch
    samples = [list(sample) for sample in zip(index.tolist(), number.tolist())]
    with open({folder!r} + "/written.jsonl", "a") as file:
        file.write(json.dumps([life, rank, steps, samples]) + "\\n")
    kills = os.environ.get("KILL", "").split()
    if f"{{life}}:{{rank}}:{{steps}}" in kills or f"{{life}}:all:{{steps}}" in kills:
        with open(killed, "a") as file:
            file.write(".")  # its size says which life this is
        os.kill(os.getpid(), signal.SIGKILL)
    inputs = torch.stack([index / {samples}, number], 1)
    return ((model(inputs)[:, 0] - inputs.sum(1)) ** 2).mean()
"""


def block(name: str) -> str:
    """Return the code of the page that has a name in its first lines."""
    found = re.findall(r"^```\w+\n(.*?)^```$", PAGE.read_text("utf-8"), re.MULTILINE | re.DOTALL)
    (code,) = (each for each in found if f"# {name}\n" in each[:60])
    return str(code)


def project(folder: Path, *names: str) -> None:
    """Write scripts of the page, and what they import of the user's."""
    for name in names:
        (folder / name).write_text(block(name), encoding="utf-8")
    (folder / "my_project.py").write_text(_project_code(os.fspath(folder)), encoding="utf-8")


def _project_code(folder: str) -> str:
    return PROJECT.format(batch=GLOBAL_BATCH, epochs=EPOCHS, samples=SAMPLES, folder=folder)


def add_program(path: Path, code: str) -> None:
    """Write a file that can be run."""
    path.parent.mkdir(exist_ok=True)
    path.write_text(code, encoding="utf-8")
    path.chmod(0o755)


def run(command: Sequence[str], folder: Path, *, fails: bool = False, **variables: str) -> None:
    """Run a command in a folder, and end all that it has started.

    Args:
        command: The first entry is found among the programs of this Python's environment.
        folder: Where it runs.
        fails: Whether it is to end with an error.
        variables: Of its environment.
    """
    environment = {
        name: value for name, value in os.environ.items() if not name.startswith(("SLURM_", "RAY"))
    }
    for name in ("PYTHONSAFEPATH", "RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"):
        environment.pop(name, None)
    programs = folder / "programs"
    for name, arguments in PROGRAMS.items():
        add_program(programs / name, f'#!/bin/sh\nexec "{sys.executable}" {arguments} "$@"\n')
    environment |= {
        "PATH": os.pathsep.join([os.fspath(programs), os.environ["PATH"]]),
        "PYTHONPATH": os.pathsep.join([os.fspath(folder), *filter(None, sys.path)]),
        "OMP_NUM_THREADS": "1",
        **variables,
    }
    with running(
        *command, cwd=folder, env=environment, stderr=subprocess.STDOUT, text=True
    ) as process:
        said, _ = process.communicate(timeout=PATIENCE)
    assert (process.returncode != 0) == fails, said


def check_same_as_one_process(folder: Path, begins: Sequence[int | None], ranks: int = 2) -> None:
    """Check that each life of a training has the global batches that one process has there.

    So all lives together train on each sample once in an epoch, but for steps that were not saved.

    Args:
        folder: Of the training.
        begins: For each life, the step after which it begins; None where nobody knows.
        ranks: Processes.
    """
    reference = _one_process()
    lives = _written(folder, ranks)
    *_, last_life = lives
    assert begins[-1] in (None, STEPS - len(last_life))
    starts = [begin for begin in begins if begin is not None]
    if begins[-1] is None:
        starts.append(STEPS - len(last_life))
    for life, begin in zip(lives, starts, strict=True):
        *whole, last = life
        assert whole == reference[begin : begin + len(whole)]
        expected = reference[begin + len(whole)]
        assert set(last) <= set(expected)  # not all ranks have come there, if one was killed
    assert last == expected


def check_all_once(folder: Path, begins: Sequence[int], ranks: int = 2) -> None:
    """Check that all lives together train on each sample once in an epoch, in whatever order.

    A step that is trained again has the same samples, and the same random numbers.

    Args:
        folder: Of the training.
        begins: For each life, the step after which it begins.
        ranks: Processes.
    """
    lives = _written(folder, ranks)
    assert len(lives) == len(begins)
    steps: dict[int, list[Any]] = {}
    for life, begin in zip(lives, begins, strict=True):
        for step, samples in enumerate(life, begin):
            assert set(steps.get(step, [])) <= set(samples)
            steps[step] = samples
    assert sorted(steps) == list(range(STEPS))
    for epoch in range(EPOCHS):
        own = range(epoch * STEPS // EPOCHS, (epoch + 1) * STEPS // EPOCHS)
        samples = [sample for step in own for sample in steps[step]]
        assert sorted(index for index, _ in samples) == list(range(SAMPLES))
        assert len({number for _, number in samples}) == SAMPLES


def _written(folder: Path, ranks: int) -> list[list[list[Any]]]:
    """Return what each life of a training has trained on: the samples of each of its steps.

    The samples of all ranks in a step are put together, and sorted.
    """
    lives: dict[str, dict[int, list[Any]]] = {}
    writers = set()
    for line in (folder / "written.jsonl").read_text("utf-8").splitlines():
        life, rank, step, samples = json.loads(line)
        writers.add(rank)
        lives.setdefault(life, {}).setdefault(step, []).extend(map(tuple, samples))
    assert writers == set(range(ranks))
    return [[sorted(lives[life][step]) for step in sorted(lives[life])] for life in sorted(lives)]


def _one_process() -> list[list[Any]]:
    """Return the samples of each step if one process loads all."""
    names: dict[str, Any] = {"__name__": "my_project"}
    exec(_project_code("."), names)  # noqa: S102  # our own
    loader: ThreadLoader[Any] = ThreadLoader(
        names["dataset"], GLOBAL_BATCH, shuffle=True, seed=17, shard=(0, 1), threads=0
    )
    return [
        sorted(zip(*(part.tolist() for part in batch), strict=True))
        for _ in range(EPOCHS)
        for batch in loader
    ]
