"""``threadloader demo``: what ``bench`` shows, on photo-like JPEGs that are made for it.

They have what decides the size of a JPEG and the time to decode it: noise at all scales, whose
power falls with the square of the frequency, and a sensor's.
"""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from threadloader.cli.arguments import CommandError, whole
from threadloader.cli.bench import add_timing, compare
from threadloader.cli.terminal import show_progress

if TYPE_CHECKING:
    import argparse


PHOTOS = 128
WIDTH, HEIGHT = 500, 375  # pixels; the most frequent size in ImageNet
QUALITY = 87  # of the JPEG; with these two it gives the 40 to 80 KB of real ones
NOISE, CONTRAST = 3.0, 12.0  # standard deviations, in grey levels of 256
HELP = "compare the rates of loaders on photos that it makes"
DESCRIPTION = """\
Make photo-like JPEGs, and compare a bare loop, torch's DataLoader (where torch is installed) and
ThreadLoader, with as many threads as processes. ImageFolder of threadloader.datasets decodes,
scales and crops the photos. For your own data see threadloader bench.
"""


def add_to(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    threads = "threads, and torch's processes (default: the cores this process may use)"
    parser.add_argument("--threads", type=whole(0), metavar="N", help=threads)
    size = "side of the resized images, in pixels (default: %(default)s)"
    parser.add_argument("--size", type=whole(1), default=224, metavar="N", help=size)
    add_timing(parser, seconds=5.0)


def run(arguments: argparse.Namespace) -> int:
    """Run the command.

    Raises:
        CommandError: Pillow is not installed.
    """
    if find_spec("PIL") is None:
        raise CommandError("the demo needs Pillow: pip install pillow (extra: demo)")
    from threadloader._threads.machine import default_threads
    from threadloader.datasets import ImageFolder

    number = default_threads() if arguments.threads is None else arguments.threads
    arguments.threads = arguments.workers = [number]
    with TemporaryDirectory(prefix="threadloader-demo-") as folder:
        make_photos(Path(folder, "photos"))
        show_progress()
        dataset = ImageFolder(folder, size=arguments.size)
        compare(dataset, f"photos, decoded by {dataset.decoder}", arguments)
    return 0


def make_photos(folder: Path) -> None:
    """Write photos, each from its number alone."""
    import numpy as np
    from PIL import Image

    folder.mkdir()
    for number in range(PHOTOS):
        show_progress(f"making photos: {number + 1} of {PHOTOS}")
        rng = np.random.default_rng(number)
        pixels = rng.normal(128.0, NOISE, (HEIGHT, WIDTH, 3))
        for power in range(1, 9):  # details of 2 pixels, of 4, and up to 256: all of one contrast
            size = (HEIGHT >> power) + 2, (WIDTH >> power) + 2
            detail = Image.fromarray(rng.normal(0.0, CONTRAST, size).astype(np.float32))
            wide = detail.resize((WIDTH, HEIGHT), Image.Resampling.BICUBIC)
            pixels += np.asarray(wide)[:, :, None] * rng.uniform(0.7, 1.3, 3)
        image = Image.fromarray(pixels.clip(0, 255).astype(np.uint8))
        image.save(folder / f"{number:04}.jpg", quality=QUALITY)
