"""What `benches.token_batches` has found, as Markdown."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

__all__ = ["batching", "packing", "resuming"]

NONE = "Not measured yet."


def batching(told: Mapping[str, Any]) -> str:
    """Return a table for each kind of data, a row for each way to make batches."""
    if not told:
        return NONE
    header = ["padding", "largest batch", "max / mean", "useful", "with attention", "us a batch"]
    tables = []
    for name, ways in told["batching"].items():
        rows = [
            [
                way,
                _percent(figures["padding"]),
                f"{figures['largest batch']:.2f}",
                f"{figures['max/mean, 8 ranks']:.3f}",
                _percent(figures["useful, 8 ranks"]),
                _percent(figures["with attention, 8 ranks"]),
                f"{figures['us a batch']:.0f}",
            ]
            for way, figures in _by(ways, lambda figures: -figures["useful, 8 ranks"])
        ]
        tables.append(_table([name, *header], rows))
    return "\n\n".join(tables)


def packing(told: Mapping[str, Any]) -> str:
    """Return a table with a row for each way to pack, and the padding of each kind of data."""
    if not told:
        return NONE
    names = list(told["packing"])
    ways = _by(told["packing"][names[0]], lambda figures: figures["padding"])
    rows = []
    for way, figures in ways:
        cost = figures.get("us a sample")
        padding = [_percent(told["packing"][name][way]["padding"]) for name in names]
        rows.append([way, *padding, "-" if cost is None else f"{cost:.0f}"])
    return _table(["", *(f"{name}: padding" for name in names), "us a sample"], rows)


def resuming(told: Mapping[str, Any]) -> str:
    """Return what it takes to go on in the middle of an epoch."""
    if not told:
        return NONE
    rows = [
        [way, f"{figures['ms']:.0f}", f"{figures['bytes']:.0f}" if "bytes" in figures else "-"]
        for way, figures in told["resuming"].items()
        if "ms" in figures
    ]
    cost = told["resuming"]["state_dict() after a batch"]["us"]
    table = _table(["", "ms to a batch in the middle", "bytes of a state"], rows)
    return f"{table}\n\nA `state_dict()` takes {cost:.1f} us."


def _by(
    ways: Mapping[str, Mapping[str, float]], key: Callable[[Mapping[str, float]], float]
) -> list[tuple[str, Mapping[str, float]]]:
    """Return ways and their figures, sorted."""
    return sorted(ways.items(), key=lambda way: key(way[1]))


def _percent(share: float) -> str:
    return f"{share:.1%}"


def _table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a Markdown table."""
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)
