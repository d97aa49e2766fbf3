"""A small bench: lanes that take turns in one process, and what a sample of each costs."""

from __future__ import annotations

import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benches.harness.command import command_line
from benches.harness.machine import machine_lines
from benches.harness.tables import Spread, align, show_spread

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    Lanes = Mapping[str, Callable[[], Iterable[Any]]]

__all__ = ["run_lanes"]


def run_lanes(
    bench: str,
    purpose: str | None,
    make: Callable[[Path], Mapping[str, Lanes]],
    what: str,
    count: Callable[[Any], int] = len,
) -> int:
    """Be the whole of a bench: read the command line, measure, print tables, return the exit code.

    Args:
        bench: The module's name.
        purpose: Its docstring.
        make: Returns the lanes of each table, by its title; a lane returns an epoch of batches.
            It gets a folder that is deleted in the end.
        what: A sample in words.
        count: Returns the number of samples in a batch.
    """
    parser = command_line(bench, purpose)
    parser.add_argument("--rounds", type=int, default=5)
    rounds = parser.parse_args().rounds
    print(machine_lines())
    with tempfile.TemporaryDirectory() as folder:
        for title, lanes in make(Path(folder)).items():
            print(f"\n{title}\n{_table(lanes, rounds, what, count)}", flush=True)
    return 0


def _table(lanes: Lanes, rounds: int, what: str, count: Callable[[Any], int]) -> str:
    """Measure in rounds, each of which begins with another lane; return rates and CPU time."""
    found: dict[str, list[tuple[float, float]]] = {name: [] for name in lanes}
    names = list(lanes)
    for number in range(rounds):
        turn = number % len(names)
        for name in names[turn:] + names[:turn]:
            wall, cpu = time.perf_counter(), time.process_time()
            samples = sum(map(count, lanes[name]()))
            wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
            found[name].append((samples / wall, cpu / samples * 1e6))
            print(f"  {name}: {samples / wall:,.0f} {what}s/s", file=sys.stderr)
    rows = [
        [name, *(show_spread(Spread.of(each)) for each in zip(*found[name], strict=True))]
        for name in found
    ]
    return align(["lane", f"{what}s/s", f"CPU us a {what}"], rows)
