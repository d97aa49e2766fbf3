"""What a cache of a node saves: downloads of four ranks, and a second epoch beside decoding again.

``python -m benches.node_cache``

1. Four processes read all of a file of 64 MiB from a web server on this machine, all in the same
   order, without a cache, with one folder each, and with one folder for all.  The server counts.
2. Photos are decoded by `ImageFolder`, and read from `Cached` in a folder and in memory, in a loop
   in this thread and through a loader with as many threads as cores.  They take turns.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from benches.harness.machine import describe, python_label, usable_cores
from benches.harness.tables import align, machine_lines
from threadloader import ThreadLoader
from threadloader.datasets import Cached, ImageFolder, RemoteFile

MIB = 1 << 20
CONTENT = np.random.default_rng(17).bytes(64 * MIB)
RANKS = 4
PHOTOS = 256


def main() -> int:
    """Measure, print the tables, return the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m benches.node_cache", description=(__doc__ or "").partition("\n")[0]
    )
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--read", nargs=2, metavar=("URL", "FOLDER"), help="be a rank")
    options = parser.parse_args()
    if options.read:
        read(*options.read)
        return 0
    print(machine_lines([(python_label(), describe())]))
    print(f"\n{RANKS} ranks that each read {len(CONTENT) // MIB} MiB")
    print(align(["cache", "MiB downloaded", "requests"], downloads()))
    with tempfile.TemporaryDirectory() as folder:
        print(f"\n{PHOTOS} photos of 500 x 375, milliseconds of CPU a photo; photos a second")
        print(align(["", "loop", "loader, photos/s"], epochs(Path(folder), options.rounds)))
    return 0


class Handler(BaseHTTPRequestHandler):
    """Sends ranges, and counts them."""

    protocol_version = "HTTP/1.1"
    sent = requests = 0

    def do_GET(self) -> None:
        """Answer with a range."""
        first, last = map(int, self.headers["Range"].removeprefix("bytes=").split("-"))
        part = CONTENT[first : last + 1]
        Handler.sent += len(part)
        Handler.requests += 1
        self.send_response(206)
        self.send_header("ETag", '"1"')
        self.send_header("Content-Length", str(len(part)))
        self.send_header("Content-Range", f"bytes {first}-{first + len(part) - 1}/{len(CONTENT)}")
        self.end_headers()
        self.wfile.write(part)

    def log_message(self, *_: Any) -> None:
        """Print nothing."""


def downloads() -> list[list[str]]:
    """Return a row for each way to cache."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    url = f"http://127.0.0.1:{server.server_port}/data.bin"
    rows = []
    for name in ("none", "a folder for each", "one folder"):
        Handler.sent = Handler.requests = 0
        with tempfile.TemporaryDirectory() as root:
            each = [f"{root}/{rank if name.endswith('each') else 0}" for rank in range(RANKS)]
            folders = each if name != "none" else [""] * RANKS
            ranks = [
                subprocess.Popen(
                    [sys.executable, "-m", "benches.node_cache", "--read", url, folder]
                )
                for folder in folders
            ]
            if any(rank.wait() for rank in ranks):
                raise SystemExit("a rank failed")
        rows.append([name, f"{Handler.sent / MIB:,.1f}", f"{Handler.requests:,}"])
    server.shutdown()
    return rows


def read(url: str, folder: str) -> None:
    """Read the whole file, as a rank."""
    file = RemoteFile(url, cache_folder=folder or None)
    for start in range(0, len(CONTENT), 4 * MIB):
        if file.read_at(start, 4 * MIB) != CONTENT[start : start + 4 * MIB]:
            raise SystemExit("wrong bytes")


def epochs(folder: Path, rounds: int) -> list[list[str]]:
    """Return a row for decoding, and one for reading what was decoded."""
    make_photos(folder / "photos" / "a")
    rows = []
    for size in (None, 224):
        decoded = ImageFolder(folder / "photos", size=size)
        cached = Cached(decoded, folder / "cache", key=f"photos, size={size}", checks=0)
        memory = Cached(decoded, memory=PHOTOS * MIB, checks=0)
        for each in (cached, memory):
            list(map(each.__getitem__, range(PHOTOS)))  # the first epoch
        names = ("decoded", "in a folder", "in memory")
        named = {
            f"{name}, size={size}": each
            for name, each in zip(names, (decoded, cached, memory), strict=True)
        }
        loops: dict[str, list[float]] = {name: [] for name in named}
        rates: dict[str, list[float]] = {name: [] for name in named}
        for _ in range(rounds):
            for name, dataset in named.items():
                started = time.thread_time()
                for index in range(PHOTOS):
                    dataset[index]
                loops[name].append((time.thread_time() - started) / PHOTOS)
                rates[name].append(in_a_loader(dataset))
        rows += [
            [name, f"{median(loops[name]) * 1e3:.3f}", f"{median(rates[name]):,.0f}"]
            for name in named
        ]
    return rows


def in_a_loader(dataset: Any) -> float:
    """Return photos a second, in an epoch of a loader that makes lists of them."""
    with ThreadLoader(dataset, 32, threads=usable_cores(), collate_fn=len) as loader:
        started = time.perf_counter()
        count: int = sum(loader)
        return count / (time.perf_counter() - started)


def make_photos(folder: Path) -> None:
    """Write JPEGs of smooth noise."""
    from PIL import Image

    folder.mkdir(parents=True)
    random = np.random.default_rng(17)
    for number in range(PHOTOS):
        coarse = Image.fromarray(random.integers(0, 256, (24, 32, 3), np.uint8))
        photo = np.asarray(coarse.resize((500, 375), Image.Resampling.BICUBIC), np.int16)
        noisy = photo + random.integers(-12, 13, photo.shape, np.int16)
        pixels = Image.fromarray(noisy.clip(0, 255).astype(np.uint8))
        pixels.save(folder / f"{number}.jpg", quality=90)


if __name__ == "__main__":
    sys.exit(main())
