"""A training that is killed at any moment, and goes on from its last state, misses nothing.

The trainings are those of `crash_training`, which writes down all that it gets.  When they are
killed is drawn from a fixed seed; what their threads are doing then is left to chance.
"""

from __future__ import annotations

import importlib.util
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any

import pytest
from support.crash_training import BATCH, EPOCHS, SAMPLES
from support.patience import PATIENCE

import threadloader

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="the system has no fork")

HAS_TORCH = importlib.util.find_spec("torch") is not None
SEEDINGS = ["seed", "numpy", "the process", *(["torch"] if HAS_TORCH else [])]
# Persistent workers, or others in each life.
THREADS = {"2, kept": [2], "another number each time": [0, 1, 2, 3, 5, 7]}
ORDERS = [True, "keyed"]
KILLS = 5  # of each kind
STEPS = EPOCHS * SAMPLES // BATCH
LIVES_ON = {"every": 1, "between": True}


@pytest.fixture(scope="module")
def server() -> Iterator[subprocess.Popen[str]]:
    """Start the process that forks; it must not have threads when it does."""
    path = [str(Path(threadloader.__file__).parents[1]), os.environ.get("PYTHONPATH", "")]
    environment = {
        "PYTHONPATH": os.pathsep.join(filter(None, path)),
        "OPENBLAS_NUM_THREADS": "1",  # it would start threads when NumPy is imported
    }
    with subprocess.Popen(
        [
            sys.executable,
            "-W",
            "error",
            str(Path(__file__).parents[1] / "support" / "crash_training.py"),
        ],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=os.environ | environment,
    ) as process:
        try:
            assert process.stdin is not None
            yield process
            if sys.platform == "linux":  # Python's own warning cannot be made an error
                assert len(list(Path(f"/proc/{process.pid}/task").iterdir())) == 1
            process.stdin.close()
            assert process.wait(PATIENCE) == 0
        finally:
            process.kill()


def ends_of_a_life(rng: Random) -> dict[str, Any]:
    """Return how often a life saves its state, and when it is killed."""
    saves = {"every": rng.choice([1, 3]), "between": rng.random() < 0.5}
    if rng.random() < 1 / 3:  # in a worker, while others load samples and the loop trains
        return saves | {"fatal": rng.randrange(SAMPLES)}
    before = rng.choice(["log", "save", "replace", "go on", "whatever it does"])
    return saves | {"before": before, "batches": rng.randint(1, 8)}


class Trainings:
    """Trainings of one kind, one after another.

    Args:
        server: Forks them.
        folder: Where they keep their state and their log.
        rng: Draws what may differ from life to life.
        threads: How many a life may have.
        same: What is the same in all lives.
    """

    def __init__(
        self,
        server: subprocess.Popen[str],
        folder: Path,
        rng: Random,
        threads: list[int],
        **same: Any,
    ) -> None:
        self.server = server
        self.state, self.log = folder / "state.json", folder / "log.jsonl"
        self.rng = rng
        self.threads = threads
        kept = len(threads) == 1
        self.same = same | {"folder": str(folder), "persistent": kept, "limit": PATIENCE}

    def life(self, how: dict[str, Any]) -> tuple[list[Any], bool]:
        """Return what one life gets, and whether it comes to the end of the training."""
        self.log.write_text("")
        drawn = {
            "threads": self.rng.choice(self.threads),
            "prefetch": self.rng.choice([1, 3, None]),
        }
        code = self.exit_code(self.same | drawn | how)
        assert code in (0, -signal.SIGKILL), drawn | how
        # A line that was being written when the process was killed has no end.
        lines = [line for line in self.log.read_text().splitlines(True) if line.endswith("\n")]
        return [json.loads(line) for line in lines], code == 0

    def exit_code(self, order: dict[str, Any]) -> int:
        """Have the server run one life, which takes a limited time."""
        assert self.server.stdin is not None
        assert self.server.stdout is not None
        self.server.stdin.write(json.dumps(order) + "\n")
        self.server.stdin.flush()
        answer = self.server.stdout.readline()
        assert answer, "the server has died"
        return int(answer)

    def lives(self, kills: int) -> Iterator[tuple[int, list[Any], bool]]:
        """Run trainings until so many lives were killed, and the last training to its end.

        Yields:
            Of each life: how many batches its state tells of when it begins, what it gets, and
            whether it comes to the end.
        """
        ended = True
        while kills or not ended:
            if ended:
                self.state.unlink(missing_ok=True)
            steps = json.loads(self.state.read_text())["steps"] if self.state.exists() else 0
            got, ended = self.life(ends_of_a_life(self.rng) if kills else LIVES_ON)
            kills -= not ended
            yield steps, got, ended


@pytest.mark.parametrize("shuffle", ORDERS)
@pytest.mark.parametrize("threads", THREADS)
@pytest.mark.parametrize("seeding", SEEDINGS)
def test_a_killed_training_goes_on_as_if_nothing_had_happened(
    seeding: str,
    threads: str,
    shuffle: bool | str,
    server: subprocess.Popen[str],
    tmp_path: Path,
) -> None:
    rng = Random(f"{seeding} {threads} {shuffle}")
    trainings = Trainings(server, tmp_path, rng, THREADS[threads], seeding=seeding, shuffle=shuffle)
    whole, _ = trainings.life(LIVES_ON)
    assert len(whole) == STEPS
    drawn = [tuple(sample[1:]) for _, _, batch in whole for sample in batch]
    assert len(set(drawn)) == EPOCHS * SAMPLES  # or equal batches would prove little
    got: list[Any] = []
    for steps, more, ended in trainings.lives(KILLS):
        assert steps <= len(got)  # what a saved state tells of was trained
        got[steps:] = more
        assert got == whole[: STEPS if ended else len(got)]
