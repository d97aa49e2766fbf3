"""What `Cached` in memory saves of a pipeline of torchvision's, and whether it keeps to its budget.

``python -m benches.cached_pipeline``

Photos of 500 x 375 are decoded, resized to 256, cropped to 224 at random, flipped at random, and
normalised.  Of the epochs of a loader without a cache and with one in memory, behind the resizing:
photos a second in the first one and in the median of the others, and one hash of all batches.  Then
the memory holds a part of the photos, for 20 epochs with 8 threads: what the cache takes.
"""

from __future__ import annotations

import argparse
import ctypes
import gc
import hashlib
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any

from benches.harness.machine import describe, python_label, usable_cores
from benches.harness.tables import align, machine_lines
from benches.node_cache import PHOTOS, make_photos
from threadloader import ThreadLoader
from threadloader.datasets import Cached

MIB = 1 << 20
COPIES = 4  # of each photo, for a memory that is large beside what else a process takes
BUDGET = 240 * MIB  # of 346 that they take, resized
PAGE = 4096  # bytes


def main() -> int:
    """Measure, print the tables, return the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m benches.cached_pipeline", description=(__doc__ or "").partition("\n")[0]
    )
    parser.add_argument("--epochs", type=int, default=6)
    parser.add_argument("--child", nargs=2, metavar=("FOLDER", "BYTES"), help="take memory")
    options = parser.parse_args()
    if options.child:
        print(child(Path(options.child[0]), int(options.child[1])))
        return 0
    print(machine_lines([(python_label(), describe())]))
    with tempfile.TemporaryDirectory() as folder:
        make_photos(Path(folder) / "a")
        head = ["threads", "without", "first epoch", "others", "times", "one hash"]
        counts = sorted({0, usable_cores()})
        print(align(head, [row(Path(folder), threads, options.epochs) for threads in counts]))
        print(within_budget(folder))
    return 0


def row(folder: Path, threads: int, epochs: int) -> list[str]:
    """Return photos a second without a cache, in the first epoch with one, and in the others."""
    plain = rates_of(photos(folder, random_part()), threads, epochs)
    kept = rates_of(cached(photos(folder)), threads, epochs)
    others = median(kept[1:])
    rates = [f"{rate:,.0f}" for rate in (median(plain), kept[0], others)]
    both = photos(folder, random_part()), cached(photos(folder))
    hashes = {hash_of(dataset, threads) for dataset in both}
    return [str(threads), *rates, f"{others / kept[0]:.1f}", "yes" if len(hashes) == 1 else "NO"]


def rates_of(dataset: Any, threads: int, epochs: int) -> list[float]:
    """Return photos a second in each epoch."""
    rates = []
    with ThreadLoader(dataset, 32, shuffle=True, threads=threads, seed=1) as loader:
        for _ in range(epochs):
            started = time.perf_counter()
            for _ in loader:
                pass
            rates.append(len(dataset) / (time.perf_counter() - started))
    return rates


def hash_of(dataset: Any, threads: int) -> str:
    """Return a hash of all batches of three epochs."""
    made = hashlib.sha256()
    with ThreadLoader(dataset, 32, shuffle=True, threads=threads, seed=1) as loader:
        for _ in range(3):
            for images, _ in loader:
                made.update(images.numpy())
    return made.hexdigest()


def within_budget(folder: str) -> str:
    """Return in words what a cache takes after 20 epochs with 8 threads, and its budget."""
    taken, processes = [], []
    for memory in (0, BUDGET):
        command = [sys.executable, "-m", "benches.cached_pipeline", "--child", folder, str(memory)]
        done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
        used, resident = map(int, done.stdout.split())
        taken.append(used / MIB)
        processes.append(resident / MIB)
    more = processes[1] - processes[0]
    return (
        f"a budget of {BUDGET / MIB:.0f} MiB: {taken[1]:.0f} MiB are given back with the cache "
        f"({taken[0]:.0f} without one); the process takes {more:.0f} MiB more than one without"
    )


def child(folder: Path, memory: int) -> str:
    """Return bytes: what is given back with the cache, and what the process had before (Linux)."""
    from torch.utils.data import Subset

    indices = list(range(PHOTOS)) * COPIES
    held: list[Any] = [Subset(photos(folder, random_part()), indices)]
    if memory:
        held = [cached(Subset(photos(folder), indices), memory)]
    with ThreadLoader(held[0], 32, shuffle=True, threads=8, seed=1) as loader:
        for _ in range(20):
            for _ in loader:
                pass
    resident = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1]) * PAGE
    del loader, _
    gc.collect()
    used = allocated()
    held.clear()
    gc.collect()
    return f"{used - allocated()} {resident}"


def allocated() -> int:
    """Return the bytes that the C library has given out (glibc)."""
    mallinfo = ctypes.CDLL(None).mallinfo2
    mallinfo.restype = Allocated
    found = mallinfo()
    return int(found.hblkhd + found.uordblks)


class Allocated(ctypes.Structure):
    """What mallinfo2(3) returns."""

    _names = "arena ordblks smblks hblks hblkhd usmblks fsmblks uordblks fordblks keepcost"
    _fields_ = [(name, ctypes.c_size_t) for name in _names.split()]


def photos(folder: Path, *more: Any) -> Any:
    """Return the dataset: resized photos, and what more transforms make of them."""
    from torchvision import datasets, transforms

    steps = transforms.Compose([transforms.Resize(256), *more])
    return datasets.ImageFolder(str(folder), transform=steps)


def cached(dataset: Any, memory: int | str = "1GiB") -> Cached:
    """Return a dataset of resized photos behind a cache, with the random transforms after it."""
    rest = random_part()
    return Cached(dataset, memory=memory, transform=lambda sample: (rest(sample[0]), sample[1]))


def random_part() -> Any:
    """Return the transforms from the first random one on."""
    from torchvision import transforms

    return transforms.Compose(
        [
            transforms.RandomCrop(224),
            transforms.RandomHorizontalFlip(),
            transforms.ToTensor(),
            transforms.Normalize([0.485, 0.456, 0.406], [0.229, 0.224, 0.225]),
        ]
    )


if __name__ == "__main__":
    sys.exit(main())
