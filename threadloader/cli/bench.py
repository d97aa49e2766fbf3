"""``threadloader bench``: a dataset of the user's, loaded by torch and by ThreadLoader.

Samples are read once before anything is timed: that finds broken ones, and it puts files into the
system's cache for all loaders, the first included.
"""

from __future__ import annotations

import os
import platform
import time
import warnings
from operator import getitem
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

from threadloader.cli.arguments import (
    CommandError,
    in_one_line,
    made_dataset,
    named_object,
    positive,
    printable,
    tried,
    whole,
    write_json,
)
from threadloader.cli.terminal import in_seconds, paragraph, show_progress, table

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from threadloader.cli.race import Round


HELP = "compare the rates of loaders on your dataset"
DESCRIPTION = """\
Compare a bare loop, torch's DataLoader (where torch is installed) and ThreadLoader, each with
several numbers of workers or threads. NAME is a dataset with __getitem__ and __len__, or a function
or class that returns one when it is called without arguments. The loaders take turns in three
rounds; a figure is the median of the rounds.
"""


def add_to(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    add = parser.add_argument
    add("dataset", metavar="MODULE:NAME", help="also FILE.py:NAME")
    add_timing(parser, seconds=3.0)
    threads = "threads of ThreadLoader (default: 0, 1, 2, and the cores once, twice and 8 times)"
    add("--threads", type=whole(0), nargs="+", metavar="N", help=threads)
    workers = "processes of torch's DataLoader (default: 0, 1, 2 and the cores)"
    add("--workers", type=whole(0), nargs="+", metavar="N", help=workers)
    add("--collate", metavar="MODULE:NAME", help="a collate_fn (default: each loader's own)")
    add("--json", type=Path, metavar="FILE", help="write all rounds to a file")


def add_timing(parser: argparse.ArgumentParser, *, seconds: float) -> None:
    """Add what `compare` needs."""
    add = parser.add_argument
    size = "samples in a batch (default: %(default)s)"
    add("--batch-size", type=whole(1), default=64, metavar="N", help=size)
    time_ = "time for each loader (default: %(default)g)"
    add("--seconds", type=positive, default=seconds, metavar="S", help=time_)


def run(arguments: argparse.Namespace) -> int:
    """Run the command.

    Raises:
        CommandError: The dataset can't be had, or one of its samples can't be loaded.
    """
    from threadloader._threads.machine import usable_cores

    dataset, name = made_dataset(arguments.dataset), printable(arguments.dataset)
    if not (hasattr(dataset, "__getitem__") and hasattr(dataset, "__len__")):
        text = f"is of type {type(dataset).__name__}; bench needs __getitem__ and __len__"
        raise CommandError(f"{name} {text}", code=2)
    if len(dataset) == 0:
        raise CommandError(f"{name} is empty", code=2)
    cores = usable_cores()
    arguments.threads = arguments.threads or [0, 1, 2, cores, 2 * cores, 8 * cores]
    arguments.workers = arguments.workers or [0, 1, 2, cores]
    collate_fn = named_object(arguments.collate) if arguments.collate else None
    content = compare(dataset, name, arguments, collate_fn)
    if arguments.json is not None:
        write_json(arguments.json, content)
    return 0


def compare(
    dataset: Any,
    name: str,
    arguments: argparse.Namespace,
    collate_fn: Callable[[Any], Any] | None = None,
) -> dict[str, Any]:
    """Race the loaders on a dataset, and print the result.

    Args:
        dataset: A map-style dataset, not empty.
        name: Of it, for people.
        arguments: ``batch_size``, ``seconds``, ``threads`` and ``workers``.
        collate_fn: The user's; None for none.

    Returns:
        All that was measured, JSON-able.

    Raises:
        CommandError: A sample can't be loaded.
    """
    from threadloader.cli.race import race

    size = arguments.batch_size
    # torch warns about its number of workers, Python about forks beside threads.
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        samples, end = 0, time.perf_counter() + arguments.seconds
        while samples < len(dataset) and (samples < size or time.perf_counter() < end):
            tried(f"{name}[{samples}]", getitem, dataset, samples)
            samples += 1
        facts = _facts(len(dataset), samples, name, size)
        print("\n".join(f"{key.title():8} {fact}" for key, fact in facts.items()), flush=True)
        figures = (dataset, samples, arguments, collate_fn, show_progress)
        try:
            rounds, failed, chosen = tried(f"a loader of {name}", race, *figures)
        finally:
            show_progress()
    remarks = [f"{each} failed and is left out: {in_one_line(e)}" for each, e in failed.items()]
    remarks += _remarks(rounds, chosen)
    print("\n" + "\n".join(_table(rounds)) + "\n")
    print("\n".join(map(paragraph, remarks)))
    loaders = [{"name": each, "rounds": [one._asdict() for one in rounds[each]]} for each in rounds]
    return {"facts": facts, "loaders": loaders, "threads_chosen": chosen, "remarks": remarks}


def _facts(length: int, samples: int, name: str, batch_size: int) -> dict[str, str]:
    """Return what the race is run on."""
    from threadloader._threads.gil_switch import is_free_threaded
    from threadloader._threads.machine import usable_cores
    from threadloader._threads.tuner import gil_is_enabled

    build = f"{platform.python_implementation()} {platform.python_version()}"
    build += " free-threaded" if is_free_threaded() else ""
    of = "" if samples == length else f" of {length:,}, the first ones"
    return {
        "python": f"{build}, GIL {'on' if gil_is_enabled() else 'off'}",
        "cores": f"{usable_cores()} for this process, of {os.cpu_count() or 1} in this machine",
        "dataset": f"{name}, {samples:,} samples{of}; batches of {batch_size}",
    }


def _remarks(
    rounds: Mapping[str, Sequence[Round]], chosen: Sequence[tuple[int, int]]
) -> Iterator[str]:
    from threadloader import _torch

    default = [*rounds][-1]
    first = max(rounds, key=lambda name: _ratio(rounds[name], rounds[default]))
    won = _ratio(rounds[first], rounds[default])
    beside = "" if first == default else f", with {won:.2f} of the default's rate"
    yield f"The winner is {first}{beside}."
    numbers = sorted({running for _, running in chosen})
    note = " (0: your own thread)" if 0 in numbers else ""
    words = " or ".join(map(str, numbers))
    yield f"The default had {words} threads at the end of its rounds{note}."
    if not _torch.AVAILABLE:
        yield "torch is not installed: its DataLoader is not compared."


def _ratio(rounds: Sequence[Round], others: Sequence[Round]) -> float:
    """Return how much faster a loader is than another: the median of the ratios in each round."""
    return median(one.rate / other.rate for one, other in zip(rounds, others, strict=True))


def _table(rounds: Mapping[str, Sequence[Round]]) -> list[str]:
    rows = []
    for name, each in rounds.items():
        rates = sorted(one.rate for one in each)
        first = in_seconds(median(one.first for one in each))
        ratio = f"{_ratio(each, rounds['bare loop']):.2f}x"
        least, most = _number(rates[0]), _number(rates[-1])
        rows.append((name, _number(median(rates)), f"{least} to {most}", ratio, first))
    return table(("loader", "samples/s", "rounds", "vs. loop", "first batch"), rows)


def _number(rate: float) -> str:
    decimals = 0 if rate >= 10 else 2
    return f"{rate:,.{decimals}f}" if rate < 1e5 else f"{rate / 1e3:,.0f}k"
