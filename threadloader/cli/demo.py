"""``threadloader demo``: a folder of images, loaded by ThreadLoader and in the usual ways.

The images are read once before anything is timed.  That finds broken ones, and it puts the files
into the system's cache for all loaders, the first included.
"""

from __future__ import annotations

import os
import random
import time
import warnings
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from threadloader.cli.argument_types import positive, whole
from threadloader.cli.errors import CommandError, printable

if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence

    from threadloader.cli.folder import ImageFiles
    from threadloader.cli.race import Contender, Result, Round
    from threadloader.cli.screen import Screen

__all__ = ["add_to"]

HAD = 0.75  # the share of the cores below which a run says little
NOISY = 0.15  # a larger range of a loader's rates, as a share of their median, gets a remark
DESCRIPTION = """\
Load a folder of images (below it too) with ThreadLoader, and for comparison with a bare loop
and, where torch is installed, with torch's DataLoader with as many processes. Images are
decoded and scaled by threadloader.datasets.ImageFolder, cropped
to a square and collated into batches. Without a folder, photo-like JPEGs are
made in the system's temporary folder and kept there for the next time.
"""


def add_to(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command to the program's."""
    parser = commands.add_parser(
        "demo", help="load images and compare with a bare loop and torch", description=DESCRIPTION
    )
    parser.add_argument("folder", nargs="?", type=Path, metavar="FOLDER", help="images to load")
    parser.add_argument(
        "--threads",
        type=whole(0),
        metavar="N",
        help="worker threads, and torch's processes (default: the cores this process may use)",
    )
    for name, default, unit in (
        ("--batch-size", 64, "samples in a batch"),
        ("--size", 224, "side of the resized images, in pixels"),
    ):
        parser.add_argument(
            name, type=whole(1), default=default, metavar="N", help=f"{unit} (default: {default})"
        )
    parser.add_argument(
        "--seconds",
        type=positive,
        default=5.0,
        metavar="S",
        help="time for each loader (default: 5)",
    )
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Run the command.

    Raises:
        CommandError: A requirement, the folder or one of its images is missing or unusable.
    """
    needed = {"Pillow": "PIL", "rich": "rich"}
    missing = [name for name, module in needed.items() if find_spec(module) is None]
    if missing:
        raise CommandError(
            f"{' and '.join(missing)} not installed; "
            f"the demo needs: pip install {' '.join(missing).lower()} (extra: demo)"
        )
    from threadloader.cli.screen import Screen

    screen = Screen()
    # Decoders warn about odd but readable images, torch about its number of workers, Python
    # about forks beside threads.  Such lines would tear the bars, and do not matter here.
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        paths, source = _images(arguments.folder, screen)
        contenders = _contenders(arguments.threads)
        dataset = _mixed(paths, arguments.size)
        # After the imports of torch and of a decoder: they decide whether the GIL is on.
        screen.facts(_machine(dataset))
        dataset = _readable(dataset, arguments, screen)
        screen.facts([("Images", _described(dataset, len(paths), source))])
        results, remarks = _race(contenders, dataset, arguments, screen)
    screen.table(results)
    for remark in remarks:
        screen.note(remark)
    return 0


def _contenders(threads: int | None) -> list[Contender]:
    from threadloader import _torch
    from threadloader._threads.cores import default_threads
    from threadloader.cli.contenders import BareLoop, Processes, Threads

    workers = default_threads() if threads is None else threads
    torch = [Processes(workers)] if _torch.AVAILABLE else []
    return [BareLoop(), *torch, Threads(workers)]


def _machine(dataset: ImageFiles) -> list[tuple[str, str]]:
    from importlib.metadata import version

    import PIL
    from PIL import features

    from threadloader._threads.cores import usable_cores
    from threadloader.cli.machine import python_build

    turbo = features.version("libjpeg_turbo")
    jpeg = f"libjpeg-turbo {turbo}" if turbo else f"libjpeg {features.version('jpg')}"
    pillow = f"Pillow {PIL.__version__} with {jpeg}"
    decoder = pillow
    if "pillow" not in dataset.decoder:
        fast = f"{dataset.decoder} {version(dataset.decoder)}"
        decoder = f"{fast} for JPEGs, {pillow} for all else and for scaling"
    cores, there = usable_cores(), os.cpu_count() or 1
    return [
        ("Python", python_build()),
        ("Cores", f"{cores} for this process, of {there} in this machine"),
        ("Dataset", f"threadloader.datasets.ImageFolder(..., size={dataset.side})"),
        ("Decoder", decoder),
    ]


def _images(folder: Path | None, screen: Screen) -> tuple[list[Path], str]:
    """Return the paths of the images, and where they come from in words."""
    if folder is not None:
        from threadloader.cli.folder import find_images

        return find_images(folder), f"in {printable(folder)}"
    from threadloader.cli import photos

    home = photos.photo_folder()
    paths = []
    with screen.bars() as bars:
        bars.add("making photos", total=photos.PHOTOS)
        for path in photos.make_photos(home, photos.PHOTOS):
            paths.append(path)
            bars.move("making photos", len(paths), f"{len(paths)} of {photos.PHOTOS}")
    return paths, f"made to be like photos, kept in {printable(home)}"


def _mixed(paths: Sequence[Path], size: int) -> ImageFiles:
    """Return a dataset of the images in random order."""
    from threadloader.cli.folder import ImageFiles

    return ImageFiles(random.Random(0).sample(paths, len(paths)), size)  # noqa: S311  # no secret


def _readable(dataset: ImageFiles, arguments: argparse.Namespace, screen: Screen) -> ImageFiles:
    """Read the images once, in their order, for as long as a loader will be timed.

    Returns:
        A dataset of the images that were read: all, unless the folder is large.
    """
    from threadloader.cli.folder import ImageFiles

    read = 0
    end = time.perf_counter() + arguments.seconds
    with screen.bars() as bars:
        bars.add("reading once", total=len(dataset))
        while read < len(dataset) and (read < arguments.batch_size or time.perf_counter() < end):
            dataset[read]
            read += 1
            bars.move("reading once", read, f"{read:,} of {len(dataset):,}")
    return ImageFiles(dataset.paths[:read], dataset.side)


def _described(dataset: ImageFiles, found: int, source: str) -> str:
    number = f"{len(dataset):,}"
    if len(dataset) < found:
        number += f" of {found:,}, drawn at random"
    mean = sum(path.stat().st_size for path in dataset.paths) / len(dataset) / 1e3
    return f"{number}, {mean:.0f} KB each on average, {source}"


def _race(
    contenders: Sequence[Contender],
    dataset: ImageFiles,
    arguments: argparse.Namespace,
    screen: Screen,
) -> tuple[list[Result], list[str]]:
    """Time the loaders; return their results, and remarks on them."""
    from threadloader.cli.race import ROUNDS, race, summarise

    rounds: dict[Contender, list[Round]] = {contender: [] for contender in contenders}
    share = arguments.seconds / ROUNDS
    remarks = []
    with screen.bars() as bars:

        def on_batch(contender: Contender, spent: float, rate: float) -> None:
            done = len(rounds[contender]) * share + spent
            bars.move(contender.name, done, f"{rate:,.0f}/s")

        for contender in contenders:
            bars.add(contender.name, total=arguments.seconds)
        for contender, outcome in race(
            contenders, dataset, arguments.batch_size, arguments.seconds, on_batch
        ):
            if isinstance(outcome, Exception):
                remarks.append(f"{contender.name} failed and is left out: {_line(outcome)}")
                del rounds[contender]
            else:
                rounds[contender].append(outcome)
                on_batch(contender, 0.0, outcome.rate)
    results = [summarise(contender, entries) for contender, entries in rounds.items()]
    return results, [*remarks, *_busy(results), *_remarks(results)]


def _busy(results: Sequence[Result]) -> list[str]:
    """Return a remark if other programs had cores that the loaders could have used."""
    from threadloader._threads.cores import usable_cores

    cores, used = usable_cores(), max(result.rate * result.cpu for result in results)
    try:
        others = os.getloadavg()[0] - used
    except (AttributeError, OSError):  # Windows
        return []
    if used > HAD * cores or others < (1 - HAD) * (os.cpu_count() or 1):
        return []
    had = f"{used:.1f} of {cores} cores"
    return [f"This run is no guide: loaders had {had} at the most, and others wanted the rest."]


def _remarks(results: Sequence[Result]) -> list[str]:
    from threadloader import _torch
    from threadloader.cli.machine import gil_is_enabled

    remarks = []
    if not _torch.AVAILABLE:
        remarks.append("torch is not installed: its DataLoader is not compared (extra: torch).")
    if gil_is_enabled():
        remarks.append(
            "The GIL is on: decoding runs in parallel, since decoders let go of the GIL; "
            "transforms in pure Python would not."
        )
    noisy = [f"{result.name} ({result.spread:.0%})" for result in results if result.spread > NOISY]
    if noisy:
        remarks.append(f"Rates differed between rounds, the machine is busy: {', '.join(noisy)}.")
    return remarks


def _line(error: Exception) -> str:
    return f"{type(error).__name__}: {next(iter(str(error).splitlines()), '')}"
