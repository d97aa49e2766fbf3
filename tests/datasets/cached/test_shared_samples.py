"""Processes of a node that share cached samples: each is loaded once, whoever is killed."""

from __future__ import annotations

import random
import signal
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.patience import PATIENCE

SAMPLES = 100

# Reads the first samples in an order that follows from a seed, in some threads, and checks them.
# Each load is noted by one write to a file, which is whole also if the process is killed then.
READER = """
import os, random, sys
sys.modules["torch"] = None  # so many imports of it would take minutes
from concurrent.futures import ThreadPoolExecutor
import numpy as np
from threadloader.datasets import Cached

folder, log, seed, samples, wanted = *sys.argv[1:4], *map(int, sys.argv[4:])
noted = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)

def content(index):
    return np.random.default_rng(index).integers(0, 256, 100 + index * 37, np.uint8)

class Dataset:
    def __len__(self):
        return samples

    def __getitem__(self, index):
        os.write(noted, f"{index}\\n".encode())
        return {"x": content(index), "label": index}

dataset = Cached(Dataset(), folder, key="test", checks=0)
order = list(range(wanted))
random.Random(seed).shuffle(order)

def read(index):
    sample = dataset[index]
    assert sample["label"] == index
    assert np.array_equal(sample["x"], content(index)), index

print("ready", flush=True)
sys.stdin.readline()
with ThreadPoolExecutor(2) as pool:
    list(pool.map(read, order))
sys.stdin.readline()  # its end, or the kill
"""


class Reader:
    """A process that is about to read the first samples through the cache in a folder."""

    def __init__(self, folder: Path, seed: int, wanted: int = SAMPLES) -> None:
        values = (folder / "cache", folder / "log", seed, SAMPLES, wanted)
        self.process = subprocess.Popen(
            [sys.executable, "-c", READER, *map(str, values)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def begin(self) -> None:
        """Let it read."""
        assert self.process.stdout is not None
        assert self.process.stdout.readline() == "ready\n"
        assert self.process.stdin is not None
        self.process.stdin.write("go\n")
        self.process.stdin.flush()

    def end(self) -> int:
        """Return how it ended."""
        self.process.communicate(timeout=PATIENCE)
        return self.process.returncode


@pytest.fixture
def readers() -> Iterator[list[Reader]]:
    """Get readers; those that still run are killed in the end."""
    made: list[Reader] = []
    yield made
    for reader in made:
        reader.process.kill()
        reader.end()


def loads(folder: Path) -> Counter[int]:
    """Return how often each sample was loaded."""
    return Counter(map(int, (folder / "log").read_text().split()))


@pytest.mark.parametrize(("processes", "order"), [(3, "the same order"), (2, "other orders")])
def test_processes_that_share_a_folder_load_each_sample_once(
    tmp_path: Path, readers: list[Reader], processes: int, order: str
) -> None:
    seeds = range(processes) if order == "other orders" else [0] * processes
    readers += [Reader(tmp_path, seed) for seed in seeds]
    for reader in readers:
        reader.begin()
    assert [reader.end() for reader in readers] == [0] * processes
    assert loads(tmp_path) == Counter(range(SAMPLES))


@pytest.mark.skipif(sys.platform == "win32", reason="no SIGKILL")
def test_after_6_kills_all_samples_are_right_and_only_those_in_flight_were_loaded_twice(
    tmp_path: Path, readers: list[Reader]
) -> None:
    draw = random.Random(17)
    pairs = 2
    for turn in range(1, pairs + 1):
        # Both want the same samples, and always some that nobody has loaded.
        pair = [Reader(tmp_path, turn, SAMPLES * turn // pairs) for _ in range(2)]
        readers += pair
        for reader in pair:
            reader.begin()
        for reader in pair:
            # Anywhere in the first milliseconds: while it loads, waits or writes.
            timer = threading.Timer(draw.random() * 0.01, reader.process.kill)
            timer.start()
            timer.join(PATIENCE)
        assert [reader.end() for reader in pair] == [-signal.SIGKILL] * 2
    last = [Reader(tmp_path, number) for number in range(2)]
    readers += last
    for reader in last:
        reader.begin()
    assert [reader.end() for reader in last] == [0, 0]
    found = loads(tmp_path)
    assert set(found) == set(range(SAMPLES))
    assert found.total() <= SAMPLES + 2 * 2 * pairs  # two threads each
    assert len(list(tmp_path.rglob("*.kept"))) == SAMPLES
