"""The table of a program's loaders: plain text, for stderr."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from threadloader.cli.text_table import in_seconds, text_table

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

__all__ = ["compared", "memory_in_words", "reported"]

COLUMNS = ("loaded by", "batches", "first batch", "waited", "share", "batches/s")
Loader = dict[str, Any]


def reported(report: Mapping[str, Any], whose: str = "") -> list[str]:
    """Return the lines about one run.

    Args:
        report: As `RunReport.as_json` returned it.
        whose: The process, if there are several; empty for the only one.
    """
    seconds = report["seconds"]
    loaders: Sequence[Loader] = report["loaders"]
    head = f"threadloader run{whose}: {in_seconds(seconds)}, {memory_in_words(report)}"
    if not loaders:
        return [f"{head}; no DataLoader of torch's was iterated over in this process"]
    names = _names(loaders)
    rows = [(name, *_cells(loader, seconds)) for name, loader in zip(names, loaders, strict=True)]
    return [
        head,
        *text_table(("DataLoader made at", *COLUMNS), rows, 2),
        *_remarks(zip(names, loaders, strict=True)),
    ]


def compared(torch: Mapping[str, Any], ours: Mapping[str, Any]) -> list[str]:
    """Return the lines about two runs of a program: without threads and with them."""
    pairs = _pairs(torch["loaders"], ours["loaders"])
    names = _names([first or second for first, second in pairs])  # type: ignore[misc]  # one is there
    rows = []
    for name, pair in zip(names, pairs, strict=True):
        labels = (name, "")
        for label, loader, report in zip(labels, pair, (torch, ours), strict=True):
            cells = ("not used",) if loader is None else _cells(loader, report["seconds"])
            rows.append((label, *cells, *[""] * (len(COLUMNS) - len(cells))))
    lines = text_table(("DataLoader made at", *COLUMNS), rows, 2)
    for name, (first, second) in zip(names, pairs, strict=True):
        if first is not None and second is not None and second["loaded_by"] != first["loaded_by"]:
            lines.append(f"* {name}: {_same(first['digests'], second['digests'])}")
    used = [(name, loader) for name, (_, loader) in zip(names, pairs, strict=True) if loader]
    lines += _remarks(used)
    lines.append(
        f"* whole run: {in_seconds(torch['seconds'])} with torch, {memory_in_words(torch)}; "
        f"{in_seconds(ours['seconds'])} with threads, {memory_in_words(ours)}"
    )
    return lines


def memory_in_words(report: Mapping[str, Any]) -> str:
    """Return the peak of a run's memory in words."""
    peak = report["peak_memory_bytes"]
    if peak is None:
        return "peak memory unknown"
    return f"peak {peak / 2**20:,.0f} MiB ({report['peak_memory_kind']})"


def _names(loaders: Sequence[Loader]) -> list[str]:
    """Return where loaders were made; with callers and numbers where two were made at one line."""
    places = [str(loader["made_at"]) for loader in loaders]
    names = [
        f"{place} < {loader['called_from']}"
        if places.count(place) > 1 and loader["called_from"]
        else place
        for place, loader in zip(places, loaders, strict=True)
    ]
    return [
        f"{name} #{names[: number + 1].count(name)}" if names.count(name) > 1 else name
        for number, name in enumerate(names)
    ]


def _cells(loader: Loader, seconds: float) -> tuple[str, ...]:
    first, rate = loader["first_batch_seconds"], loader["batches_a_second"]
    return (
        str(loader["loaded_by"]) + (" *" if loader["left_alone_because"] else ""),
        f"{loader['batches']:,}",
        "-" if first is None else f"{first * 1e3:,.0f} ms",
        in_seconds(loader["wait_seconds"]),
        f"{loader['wait_seconds'] / seconds:.1%}",
        "-" if rate is None else f"{rate:,.1f}",
    )


def _remarks(loaders: Iterable[tuple[str, Loader]]) -> list[str]:
    return [
        f"* {name} is left to torch: {loader['left_alone_because']}"
        for name, loader in loaders
        if loader["left_alone_because"]
    ]


def _pairs(
    first: Sequence[Loader], second: Sequence[Loader]
) -> list[tuple[Loader | None, Loader | None]]:
    """Return the loaders of two runs that were made at one place, in the order of the first run."""
    others = dict(zip(_names(second), second, strict=True))
    pairs: list[tuple[Loader | None, Loader | None]] = [
        (loader, others.pop(name, None)) for name, loader in zip(_names(first), first, strict=True)
    ]
    return [*pairs, *((None, loader) for loader in others.values())]


def _same(first: Sequence[str], second: Sequence[str]) -> str:
    number = min(len(first), len(second))
    same = sum(one == other for one, other in zip(first, second, strict=False))
    if same == number:
        return f"the first {number} batches are the same"
    return (
        f"{same} of the first {number} batches are the same; samples that draw random numbers "
        "draw others in threads"
    )
