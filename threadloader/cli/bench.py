"""``threadloader bench``: a dataset of the user's, loaded by torch and by ThreadLoader.

Samples are read once before anything is timed: that finds broken ones, and it puts files into the
system's cache for all loaders, the first included.
"""

from __future__ import annotations

import json
import time
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any

from threadloader.cli.argument_types import positive, whole
from threadloader.cli.errors import CommandError, printable

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Sequence

    from threadloader.cli.contenders import Threads
    from threadloader.cli.race import Contender, Result, Round

__all__ = ["add_to"]

NOISY = 0.15  # a larger range of a loader's rates, as a share of their median, gets a remark
DESCRIPTION = """\
Load a dataset of yours by a bare loop, by torch's DataLoader (where torch is installed) and by
ThreadLoader, with several numbers of workers and threads each. NAME is a dataset with __getitem__
and __len__, or something that returns one when it is called without arguments. Each loader gets
its turn in each of three rounds; a figure is the median of the rounds.
"""


def add_to(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command to the program's."""
    parser = commands.add_parser(
        "bench",
        help="load a dataset of yours and compare with a bare loop and torch",
        description=DESCRIPTION,
        allow_abbrev=False,
    )
    parser.add_argument("dataset", metavar="MODULE:NAME", help="also FILE.py:NAME")
    parser.add_argument(
        "--batch-size",
        type=whole(1),
        default=64,
        metavar="N",
        help="samples in a batch (default: 64)",
    )
    parser.add_argument(
        "--seconds",
        type=positive,
        default=3.0,
        metavar="S",
        help="time for each loader (default: 3)",
    )
    parser.add_argument(
        "--threads",
        type=whole(0),
        nargs="+",
        metavar="N",
        help="threads of ThreadLoader (default: 0, 1, 2, and the cores once, twice and 8 times)",
    )
    parser.add_argument(
        "--workers",
        type=whole(0),
        nargs="+",
        metavar="N",
        help="processes of torch's DataLoader (default: 0, 1, 2 and the cores)",
    )
    parser.add_argument(
        "--collate", metavar="MODULE:NAME", help="a collate_fn (default: each loader's own)"
    )
    parser.add_argument("--svg", type=Path, metavar="FILE", help="draw the rates into a file")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all rounds to a file")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Run the command.

    Raises:
        CommandError: The dataset can't be had, or one of its samples can't be loaded.
    """
    from threadloader.cli.user_dataset import named_object, user_dataset

    dataset = user_dataset(arguments.dataset)
    collate_fn = named_object(arguments.collate) if arguments.collate else None
    # torch warns about its number of workers, Python about forks beside threads.
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        contenders = _contenders(arguments, collate_fn)
        samples = _read(dataset, arguments, collate_fn)
        facts = _facts(dataset, samples, arguments)
        print("\n".join(facts.values()), flush=True)
        rounds, failures = _race(contenders, dataset, samples, arguments)
    from threadloader.cli.race import summarise

    results = {each: summarise(each, entries) for each, entries in rounds.items()}
    remarks = [*failures, *_remarks(results, rounds)]
    _show(results, rounds, remarks)
    if arguments.svg is not None:
        arguments.svg.write_text(_drawn(arguments.dataset, results), encoding="utf-8")
    if arguments.json is not None:
        content = _as_json(facts, rounds, remarks)
        arguments.json.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
    return 0


def _contenders(
    arguments: argparse.Namespace, collate_fn: Callable[[Any], Any] | None
) -> list[Contender]:
    from threadloader import _torch
    from threadloader._batch.numpy_collate import numpy_collate
    from threadloader._threads.cores import usable_cores
    from threadloader.cli.contenders import BareLoop, Processes, Threads

    cores = usable_cores()
    default = _torch.default_collate if _torch.AVAILABLE else numpy_collate
    found: list[Contender] = [BareLoop(collate_fn or default)]
    if _torch.AVAILABLE:
        workers = arguments.workers or [0, 1, 2, cores]
        found += [Processes(number, collate_fn) for number in sorted({*workers})]
    threads = arguments.threads or [0, 1, 2, cores, 2 * cores, 8 * cores]
    found += [Threads(number, collate_fn) for number in sorted({*threads})]
    return [*found, Threads(None, collate_fn)]


def _read(
    dataset: Any, arguments: argparse.Namespace, collate_fn: Callable[[Any], Any] | None
) -> int:
    """Read samples once, for as long as a loader will be timed; return how many there were.

    Raises:
        CommandError: A sample can't be loaded, or the first batch can't be collated.
    """
    from threadloader.cli.user_dataset import in_one_line

    read, batch = 0, []
    end = time.perf_counter() + arguments.seconds
    while read < len(dataset) and (read < arguments.batch_size or time.perf_counter() < end):
        try:
            sample = dataset[read]
        except Exception as error:
            name = printable(arguments.dataset)
            raise CommandError(f"{name}[{read}] failed: {in_one_line(error)}", code=2) from error
        if read < arguments.batch_size:
            batch.append(sample)
        read += 1
    if collate_fn is not None:
        try:
            collate_fn(batch)
        except Exception as error:
            raise CommandError(
                f"the collate function failed: {in_one_line(error)}", code=2
            ) from error
    return read


def _facts(dataset: Any, samples: int, arguments: argparse.Namespace) -> dict[str, str]:
    """Return what the race is run on, a line each."""
    import os

    from threadloader._threads.cores import usable_cores
    from threadloader.cli.machine import python_build

    of = "" if samples == len(dataset) else f" of {len(dataset):,}, the first ones"
    there = os.cpu_count() or 1
    return {
        "python": f"Python   {python_build()}",
        "cores": f"Cores    {usable_cores()} for this process, of {there} in this machine",
        "dataset": f"Dataset  {printable(arguments.dataset)}, {samples:,} samples{of}; "
        f"batches of {arguments.batch_size}",
    }


def _race(
    contenders: Sequence[Contender], dataset: Any, samples: int, arguments: argparse.Namespace
) -> tuple[dict[Contender, list[Round]], list[str]]:
    """Time the loaders; return their rounds, and what failed.

    Raises:
        CommandError: A loader of ours failed, or the bare loop.
    """
    from threadloader.cli.race import race
    from threadloader.cli.user_dataset import in_one_line

    rounds: dict[Contender, list[Round]] = {contender: [] for contender in contenders}
    failures = []
    outcomes = race(contenders, dataset, arguments.batch_size, arguments.seconds, _nothing, samples)
    try:
        for contender, outcome in outcomes:
            if isinstance(outcome, Exception):
                failures.append(f"{contender.name} failed and is left out: {in_one_line(outcome)}")
                del rounds[contender]
            else:
                rounds[contender].append(outcome)
    except Exception as error:
        name = printable(arguments.dataset)
        raise CommandError(
            f"{name} failed while it was loaded: {in_one_line(error)}", code=2
        ) from error
    return rounds, failures


def _nothing(*_: object) -> None:
    """Show no progress: a bar would need rich."""


def _ratio(rounds: Sequence[Round], others: Sequence[Round]) -> float:
    """Return how much faster a loader is than another, the median of the ratios in each round."""
    from statistics import median

    return median(one.rate / other.rate for one, other in zip(rounds, others, strict=True))


def _remarks(results: dict[Contender, Result], rounds: dict[Contender, list[Round]]) -> list[str]:
    from threadloader import _torch
    from threadloader.cli.machine import gil_is_enabled

    default: Any = next(each for each in results if getattr(each, "threads", 0) is None)
    found = [_chosen(default)]
    for kind, words in (("ours", "our best fixed number"), ("torch", "torch's best")):
        rivals = [each for each in results if _kind(each) == kind and each is not default]
        if rivals:
            best = max(rivals, key=lambda each: results[each].rate)
            ratio = _ratio(rounds[default], rounds[best])
            found.append(f"The default reaches {ratio:.2f} of {best.name}, {words}.")
    if not _torch.AVAILABLE:
        found.append("torch is not installed: its DataLoader is not compared.")
    if gil_is_enabled():
        found.append("The GIL is on: samples in pure Python do not run in parallel in threads.")
    noisy = [
        f"{result.name} ({result.spread:.0%})"
        for result in results.values()
        if result.spread > NOISY
    ]
    if noisy:
        found.append(f"Rates differed between rounds: {', '.join(noisy)}.")
    return found


def _chosen(default: Threads) -> str:
    """Say how many threads the default had at the end of each round."""
    counts = sorted({*default.chosen})
    words = [
        f"{workers} thread{'s' if workers > 1 else ''}"
        + (f" ({running} at once)" if running < workers else "")
        for workers, running in counts
    ]
    return f"The default had {' or '.join(words)} at the end of its rounds."


def _show(
    results: dict[Contender, Result],
    rounds: dict[Contender, list[Round]],
    remarks: Sequence[str],
) -> None:
    from threadloader.cli.text_table import in_seconds, text_table

    loop = next(iter(rounds.values()))
    rows = [
        (
            result.name,
            _rate(result.rate),
            f"{_rate(result.slowest)} to {_rate(result.fastest)}",
            f"{_ratio(rounds[each], loop):.2f}x",
            in_seconds(result.first),
            f"{result.cpu * 1e3:,.3f} ms",
        )
        for each, result in results.items()
    ]
    heads = ("loader", "samples/s", "rounds", "vs. loop", "first batch", "CPU/sample")
    print("\n" + "\n".join(text_table(heads, rows)) + "\n")
    for remark in remarks:
        print(f"* {remark}")


def _rate(rate: float) -> str:
    return f"{rate:,.0f}" if rate >= 10 else f"{rate:.2f}"


def _drawn(name: str, results: dict[Contender, Result]) -> str:
    from threadloader.cli.bar_chart import Bar, bar_chart

    bars = [
        Bar(result.name, result.rate, result.slowest, result.fastest, _kind(each))
        for each, result in results.items()
    ]
    return bar_chart(f"{name}: samples a second", "median of the rounds", bars)


def _kind(contender: Contender) -> str:
    if contender.foreign:
        return "torch"
    return "ours" if hasattr(contender, "chosen") else "loop"


def _as_json(
    facts: dict[str, str], rounds: dict[Contender, list[Round]], remarks: Sequence[str]
) -> dict[str, Any]:
    from dataclasses import asdict

    return {
        "facts": {name: fact.partition("  ")[2].strip() for name, fact in facts.items()},
        "loaders": [
            {
                "name": each.name,
                "kind": _kind(each),
                "threads_chosen": [list(pair) for pair in getattr(each, "chosen", [])],
                "rounds": [asdict(entry) for entry in entries],
            }
            for each, entries in rounds.items()
        ],
        "remarks": list(remarks),
    }
