"""A training that saves its loader's state, and lives on after SIGKILL; `test_crash` runs it.

It reads orders as JSON, one a line: which training, and how this life of it ends.  Each life is a
forked child, so that Python, NumPy and torch are imported once and not hundreds of times.  A fork
copies locks but not the threads that hold them, so this process starts none: it loads no batch and
calls no operator of torch's, whose threads start with the first that is worth it.  For each life
it answers with the exit code.
"""

from __future__ import annotations

import faulthandler
import gc
import importlib.util
import json
import os
import random
import signal
import sys
import traceback
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np

from threadloader import ThreadLoader, sample_rng

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

SAMPLES, BATCH, EPOCHS = 40, 4, 3
FIRST, LATER = 1, 2  # seeds of a training that begins, and of one that goes on

torch: Any = importlib.import_module("torch") if importlib.util.find_spec("torch") else None


class Augmented:
    """Samples that tell which they are and what each random generator gave them.

    Args:
        fatal: The sample at which the process is killed; None for none.
    """

    def __init__(self, fatal: int | None) -> None:
        self.fatal = fatal

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, index: int) -> np.ndarray:
        if index == self.fatal:
            die()
        drawn = [random.random(), np.random.random(), sample_rng().random()]  # noqa: NPY002
        if torch is not None:
            drawn.append(torch.rand(()).item())
        return np.array([index, *drawn])


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def generator_of(kind: str, seed: int) -> Any:
    """Return the loader's generator; None where something else decides."""
    if kind == "numpy":
        return np.random.default_rng(seed)
    return torch.Generator().manual_seed(seed) if kind == "torch" else None


def seed_process(seed: int) -> None:
    if torch is None:
        np.random.seed(seed)  # noqa: NPY002
    else:
        torch.manual_seed(seed)


class Training:
    """One life of a training.

    Args:
        order: What is trained in which folder, when this life ends, and the seconds after which
            it is stuck and ends with every thread's stack.
        tell: Called after each batch.
    """

    def __init__(self, order: Mapping[str, Any], tell: Callable[[], object]) -> None:
        self.order = order
        self.tell = tell
        self.state = Path(order["folder"], "state.json")
        self.log = Path(order["folder"], "log.jsonl")
        saved = json.loads(self.state.read_text()) if self.state.exists() else None
        # One that goes on has other seeds, so that what it gives can come of the state alone.
        self.seed = FIRST if saved is None else LATER
        self.steps = 0 if saved is None else saved["steps"]
        self.epoch = 0 if saved is None else saved["epoch"]
        self.inside = saved is not None and saved["inside"]  # of an epoch, not between two
        self.lived = 0  # batches of this life
        self.loader = ThreadLoader(
            Augmented(order.get("fatal")),
            BATCH,
            shuffle=order["shuffle"],
            threads=order["threads"],
            prefetch=order["prefetch"],
            persistent_workers=order["persistent"],
            seed=FIRST if order["seeding"] == "seed" else None,
            generator=generator_of(order["seeding"], self.seed),
        )
        if saved is not None:
            self.loader.load_state_dict(saved["loader"])

    def train(self) -> None:
        while self.epoch < EPOCHS:
            # The process's own random state is in no state of a loader: who wants the later epochs
            # from it seeds each.  That of the epoch that goes on must not count.
            seed_process(self.epoch + 100 * (LATER if self.inside else FIRST))
            self.inside = True
            for batch in self.loader:
                self.step(np.asarray(batch).tolist())
            self.epoch += 1
            self.inside = False
            if self.order["between"]:
                self.save()

    def step(self, batch: list[Any]) -> None:
        self.lived += 1
        self.die_before("log")
        with self.log.open("a") as log:
            log.write(json.dumps([self.epoch, self.steps, batch]) + "\n")
        self.steps += 1
        self.die_before("save")
        if not self.steps % self.order["every"]:
            self.save()
        self.tell()
        self.die_before("go on")

    def save(self) -> None:
        """Save the state; there is the old one or the new one, whenever the process ends."""
        at = {"steps": self.steps, "epoch": self.epoch, "inside": self.inside}
        new = self.state.with_suffix(".new")
        new.write_text(json.dumps(at | {"loader": self.loader.state_dict()}))
        self.die_before("replace")
        new.replace(self.state)

    def die_before(self, what: str) -> None:
        if self.order.get("before") == what and self.lived >= self.order["batches"]:
            die()


def live(order: Mapping[str, Any], told: int) -> NoReturn:
    """Be the child: train, and end without what an interpreter does at its end."""
    try:
        faulthandler.dump_traceback_later(order["limit"], exit=True)
        Training(order, tell=lambda: os.write(told, b".")).train()
    except BaseException:  # noqa: BLE001  # whatever it is, the child must not read orders
        traceback.print_exc()
        os._exit(1)
    os._exit(0)


def killed_or_ended(order: Mapping[str, Any]) -> int:
    """Run one life; kill it after so many batches if the order is so. Return its exit code."""
    heard, told = os.pipe()
    child = os.fork()
    if child == 0:
        live(order, told)
    os.close(told)
    if order.get("before") == "whatever it does":
        for _ in range(order["batches"]):
            os.read(heard, 1)  # returns at once when the child has ended
        os.kill(child, signal.SIGKILL)  # not waited for yet, so the number is its own
    _, status = os.waitpid(child, 0)
    os.close(heard)
    return os.waitstatus_to_exitcode(status)


if __name__ == "__main__":
    gc.freeze()  # a collection in a child would touch, and so copy, all that it has of this process
    for line in sys.stdin:
        sys.stdout.write(f"{killed_or_ended(json.loads(line))}\n")
        sys.stdout.flush()
