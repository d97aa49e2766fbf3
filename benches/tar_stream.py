"""Streaming photos from ``.tar.zst``: TarStream against webdataset with torch's DataLoader.

``python -m benches.tar_stream --python PYTHON3.11``

The same shards of 500x375 JPEGs and classes, whole photos as uint8 RGB in batches of 64.  Each
measurement is a fresh process with a settled allocator, and the rounds are interleaved.
webdataset reads zstd through a pipe from the command ``zstd``, which is how it can.  It is given
both ways to make batches with workers, by DataLoader and by itself.  `TarStream` is measured with
the fastest decoder that is installed, and with Pillow, which is what webdataset uses.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import subprocess
import sys
import tarfile
import tempfile
import time
from dataclasses import asdict, dataclass
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benches.harness.fresh_process import ROOT, find_python, make_environment
from benches.harness.machine import describe
from benches.harness.measurement import settle_allocator
from benches.harness.rounds import Spread
from benches.workloads.photo_files import cache_folder, make_photo_files

if TYPE_CHECKING:
    from collections.abc import Iterable

SHARDS, PHOTOS = 8, 256  # photos in each
BATCH = 64
TARGET = 2.0  # times webdataset's samples a second


@dataclass(frozen=True, slots=True)
class Lane:
    """One thing that is measured."""

    reader: str
    workers: int

    @property
    def name(self) -> str:
        """The lane in a few words."""
        return f"{self.reader} x{self.workers}"


@dataclass(frozen=True, slots=True)
class Measured:
    """What a process found."""

    rate: float  # samples a second
    cpu_us: float  # microseconds a sample, of all processes: what other tenants disturb less


OURS = [Lane("threadloader", 1), Lane("threadloader", 2)]
OURS_WITH_PILLOW = [Lane("threadloader-pillow", 2)]
THEIRS = [
    Lane("webdataset", 0),
    Lane("webdataset", 1),
    Lane("webdataset", 2),
    Lane("webdataset-batched", 2),
]


def make_shards() -> list[str]:
    """Make the shards where they are missing; return their paths.

    Raises:
        CalledProcessError: The command ``zstd`` failed.
        FileNotFoundError: There is no such command.
    """
    folder = cache_folder() / f"tar-zst-{SHARDS}x{PHOTOS}-v1"
    paths = [folder / f"photos-{shard:03}.tar.zst" for shard in range(SHARDS)]
    if all(path.exists() for path in paths):
        return list(map(str, paths))
    photos = [path.read_bytes() for path in make_photo_files()]
    folder.mkdir(parents=True, exist_ok=True)
    for shard, path in enumerate(paths):
        with tempfile.TemporaryDirectory(dir=folder) as scratch:
            plain = Path(scratch) / "photos.tar"
            with tarfile.open(plain, "w") as archive:
                for photo in range(PHOTOS):
                    number = shard * PHOTOS + photo
                    _add(archive, f"{number:06}.jpg", photos[number % len(photos)])
                    _add(archive, f"{number:06}.cls", str(number % 100).encode())
            packed = f"{plain}.zst"
            subprocess.run(["zstd", "-q", "-3", str(plain), "-o", packed], check=True)  # noqa: S607
            Path(packed).replace(path)
    return list(map(str, paths))


def _add(archive: tarfile.TarFile, name: str, data: bytes) -> None:
    info = tarfile.TarInfo(name)
    info.size = len(data)
    archive.addfile(info, io.BytesIO(data))


def ours(paths: list[str], workers: int, decoder: str) -> Iterable[Any]:
    """Return a loader of ours."""
    from threadloader import ThreadLoader
    from threadloader.datasets import TarStream
    from threadloader.datasets._images.decode import decode

    functions = {"jpg": partial(decode, decoder=decoder)}
    stream = TarStream(paths, fields=("jpg", "cls"), decode=functions)
    return ThreadLoader(stream, BATCH, threads=workers, persistent_workers=True)


def theirs(paths: list[str], workers: int, *, batched: bool) -> Iterable[Any]:
    """Return torch's loader over webdataset."""
    from torch.utils.data import DataLoader

    wds: Any = import_module("webdataset")
    pipes = [f"pipe:zstd -dcq {path}" for path in paths]
    dataset = wds.WebDataset(pipes, shardshuffle=False).decode("rgb8").to_tuple("jpg", "cls")
    if batched:
        dataset = dataset.batched(BATCH)
    return DataLoader(
        dataset,
        batch_size=None if batched else BATCH,
        num_workers=workers,
        persistent_workers=workers > 0,
    )


def measure(lane: Lane, seconds: float) -> Measured:
    """Measure whole epochs, after one that is not timed but whose CPU time counts.

    Raises:
        ValueError: An epoch had other samples than it should.
    """
    paths = make_shards()
    settle_allocator()
    if lane.reader.startswith("threadloader"):
        loader = ours(paths, lane.workers, "pillow" if "pillow" in lane.reader else "auto")
    else:
        loader = theirs(paths, lane.workers, batched="batched" in lane.reader)
    used = sum(os.times()[:4])
    first = _epoch(loader)
    samples, started = 0, time.perf_counter()
    while (elapsed := time.perf_counter() - started) < seconds:
        samples += _epoch(loader)
    elapsed = time.perf_counter() - started
    del loader  # processes that have ended count
    used = sum(os.times()[:4]) - used
    return Measured(samples / elapsed, used / (first + samples) * 1e6)


def _epoch(loader: Iterable[Any]) -> int:
    samples = classes = 0
    for photos, labels in loader:
        if tuple(photos.shape[1:]) != (375, 500, 3):
            raise ValueError(f"a batch of photos of {tuple(photos.shape)}")
        samples += len(labels)
        classes += int(sum(labels))
    if (samples, classes) != (SHARDS * PHOTOS, sum(n % 100 for n in range(SHARDS * PHOTOS))):
        raise ValueError(f"{samples} samples, whose classes add up to {classes}")
    return samples


def run(python: str, lanes: list[Lane], rounds: int, seconds: float) -> dict[Lane, list[Measured]]:
    """Measure each lane once a round, each round beginning with another one."""
    found: dict[Lane, list[Measured]] = {lane: [] for lane in lanes}
    for number in range(rounds):
        turn = number % len(lanes)
        for lane in (*lanes[turn:], *lanes[:turn]):
            told = _ask(python, lane, seconds)
            print(
                f"  round {number + 1}/{rounds}: {lane.name}: {told.rate:,.0f}/s, "
                f"{told.cpu_us:,.0f} us of CPU",
                flush=True,
            )
            found[lane].append(told)
    return found


def _ask(python: str, lane: Lane, seconds: float) -> Measured:
    """Measure in a fresh process, whose bytecode is cached whatever the shell says."""
    question = json.dumps(asdict(lane) | {"seconds": seconds})
    command = [python, "-m", "benches.tar_stream", "--child", question]
    done = subprocess.run(
        command, cwd=ROOT, env=make_environment(), capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)} failed:\n{done.stderr[-4000:]}")
    return Measured(**json.loads(done.stdout.splitlines()[-1]))


def table(found: dict[Lane, list[Measured]]) -> tuple[str, bool]:
    """Return the figures as lines, and whether the target is reached."""
    best = max(THEIRS, key=lambda lane: _spread([told.rate for told in found[lane]]).median)
    lines = [f"{'lane':24}{'samples/s':>24}{'as a multiple':>22}{'us of CPU':>24}{'best / it':>20}"]
    for lane, told in found.items():
        pairs = list(zip(told, found[best], strict=True))
        columns = [
            (_spread([mine.rate for mine in told]), 0, 24),
            (_spread([mine.rate / its.rate for mine, its in pairs]), 2, 22),
            (_spread([mine.cpu_us for mine in told]), 0, 24),
            (_spread([its.cpu_us / mine.cpu_us for mine, its in pairs]), 2, 20),
        ]
        lines.append(f"{lane.name:24}" + "".join(_cell(*column) for column in columns))
    pairs = list(zip(found[OURS[-1]], found[best], strict=True))
    ratio = _spread([mine.rate / its.rate for mine, its in pairs]).median
    reached = ratio >= TARGET
    lines.append(
        f"target: {TARGET} times {best.name}; {'reached' if reached else 'missed'} with {ratio:.2f}"
    )
    return "\n".join(lines), reached


def _cell(spread: Spread, digits: int, width: int) -> str:
    text = f"{spread.median:,.{digits}f} ({spread.low:,.{digits}f} to {spread.high:,.{digits}f})"
    return f"{text:>{width}}"


def _spread(figures: list[float]) -> Spread:
    found = Spread.of(figures)
    if found is None:
        raise ValueError("nothing was measured")
    return found


def main() -> int:
    """Run the rounds; return 1 if the target is missed."""
    parser = argparse.ArgumentParser(
        prog="python -m benches.tar_stream", description=(__doc__ or "").partition("\n")[0]
    )
    parser.add_argument("--python", type=find_python, default=sys.executable)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=4.0, help="least time of a measurement")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        question = json.loads(options.child)
        seconds = question.pop("seconds")
        print(json.dumps(asdict(measure(Lane(**question), seconds))))
        return 0
    make_shards()
    print(describe())
    lanes = [*OURS, *OURS_WITH_PILLOW, *THEIRS]
    lines, reached = table(run(options.python, lanes, options.rounds, options.seconds))
    print(lines)
    return int(not reached)


if __name__ == "__main__":
    sys.exit(main())
