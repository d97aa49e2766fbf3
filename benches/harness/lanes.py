"""Lanes of one bench that take turns: what each iterates over, and what a sample of it costs."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING, Any

from benches.harness.rounds import Spread
from benches.harness.tables import align, show_spread

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping


def table_of(
    lanes: Mapping[str, Callable[[], Iterable[Any]]],
    rounds: int,
    what: str,
    count: Callable[[Any], int] = len,
) -> str:
    """Measure lanes in rounds by turns; return a table of their rates and CPU time.

    Args:
        lanes: Return what each iterates over, by name: an epoch of batches.
        rounds: How many.
        what: A sample in words.
        count: Returns the number of samples in a batch.
    """
    found: dict[str, list[tuple[float, float]]] = {name: [] for name in lanes}
    names = list(lanes)
    for number in range(rounds):
        for name in names[number % len(names) :] + names[: number % len(names)]:
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
