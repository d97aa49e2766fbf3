"""Pictures of the results: all rivals, and builds with and without the GIL."""

from __future__ import annotations

from typing import TYPE_CHECKING

from benches.drawing import Axis, Drawing, Panel
from benches.harness.tables import show_number

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from benches.harness.contest import Contest
    from benches.harness.results import Results

__all__ = ["builds_picture", "rivals_picture", "torch_picture"]

ROW = 24  # pixels a workload
COLOURS = {
    "bare_loop": "g",
    "executor": "g",
    "torch_dataloader": "b",
    "stateful_dataloader": "f",
    "torchdata_nodes": "f",
    "spdl_threads": "c",
    "spdl_subprocess": "c",
    "grain_threads": "d",
    "monai_threads": "e",
    "webdataset_shards": "d",
    "dataloader_rust": "d",
    "turboloader_map": "e",
}
WORDS = {
    "b": "torch DataLoader",
    "f": "StatefulDataLoader, torchdata.nodes",
    "c": "SPDL",
    "d": "Grain, dataloader-rs, webdataset",
    "e": "MONAI, turboloader",
    "g": "bare loop, executor by hand",
}

PANELS = {  # by workload: title and explanation
    "photos": ("Photos a second", "JPEG 500x375, decoded and resized by Pillow; more is better"),
    "start_paths": (
        "Milliseconds to a first batch",
        "of a million paths in a list; less is better",
    ),
    "strings": ("MiB of memory", "all processes, 5 million strings in a list; less is better"),
}
BARS = {"torch, in-process": "g", "torch, with workers": "b", "ThreadLoader": "a"}


def torch_picture(results: Results, scheme: str) -> str:
    """Draw torch's DataLoader and ThreadLoader, each with its best number, as bars."""
    wide, beside, high = 340, 60, 16  # of the longest bar; left of the bars; of a bar
    group = high * len(BARS) + 10
    panel = 52 + group * len(results.builds)
    drawing = Drawing(470, 44 + panel * len(PANELS), "torch's DataLoader and ThreadLoader")
    for place, (name, kind) in enumerate(BARS.items()):
        left = 16 + 156 * place
        drawing.bar(left, 16, 12, 12, kind)
        drawing.word(left + 18, 27, name, "small")
    for number, (workload, (title, explanation)) in enumerate(PANELS.items()):
        top = 44 + panel * number
        drawing.word(16, top + 20, title, "title")
        drawing.word(16, top + 38, explanation, "small")
        figures = {
            build: _bars(results, results.contests[build, workload]) for build in results.builds
        }
        most = max(map(max, figures.values()))
        for row, (build, values) in enumerate(figures.items()):
            above = top + 48 + group * row
            drawing.word(16, above + group / 2, build)
            for bar, (value, kind) in enumerate(zip(values, BARS.values(), strict=True)):
                length = max(1, wide * value / most)
                drawing.bar(beside, above + high * bar, length, high - 2, kind)
                middle = above + high * bar + high - 5
                drawing.word(beside + length + 6, middle, show_number(value), "small")
    return drawing.svg(scheme)


def _bars(results: Results, contest: Contest) -> list[float]:
    """Return the medians of torch's loader without and with workers, and of ThreadLoader."""
    theirs = contest.of("torch_dataloader")
    kinds = [
        [lane for lane in theirs if bool(lane.question.workers) is some] for some in (False, True)
    ]
    best = [
        results.rounds.best(lanes, contest.figure) for lanes in (*kinds, contest.of("threadloader"))
    ]
    spreads = [results.rounds.spread(lane, contest.figure) for lane in best]
    return [spread.median if spread else 0.0 for spread in spreads]


def rivals_picture(results: Results) -> str:
    """Draw each rival's best as a dot, relative to ThreadLoader's best; a panel for each build."""
    compared = [contest for contest in results.ordered() if _ratios(results, contest)]
    names = list(dict.fromkeys(contest.workload for contest in compared))
    wide, beside, gap = 330, 150, 50
    height = 130 + ROW * len(names) + 90
    drawing = Drawing(
        beside + len(results.builds) * (wide + gap) + 20,
        height,
        "Rivals relative to ThreadLoader, for each workload",
    )
    drawing.word(16, 28, "Each rival's best, divided by ThreadLoader's best", "title")
    drawing.word(16, 48, "left of the line: slower than ThreadLoader (or more memory)", "small")
    for number, label in enumerate(results.builds):
        x = Axis(0.01, 10, (0.01, 0.1, 1, 10), logarithmic=True, show=_times)
        y = Axis(0, len(names), ())
        left = beside + number * (wide + gap)
        panel = Panel(drawing, left, 110, wide, ROW * len(names), x, y)
        panel.axes(f"Python {label}", "", "")
        places = [panel.at(1, edge) for edge in (0, len(names))]
        drawing.line(places, "a")
        drawing.word(places[0][0], 104, "ThreadLoader", "word a", "middle")
        for row, name in enumerate(names):
            level = len(names) - row - 0.5
            _, high = panel.at(1, level)
            drawing.rule(left, high, left + wide, high)
            if number == 0:
                drawing.word(beside - 10, high + 4, name.replace("_", " "), "small", "end")
            contest = results.contests.get((label, name))
            for loader, ratio in _ratios(results, contest).items() if contest else ():
                drawing.dot(*panel.at(ratio, level), COLOURS[loader], 4.5)
    for place, (kind, words) in enumerate(WORDS.items()):
        left, low = 30 + place % 3 * 280, height - 42 + place // 3 * 22
        drawing.dot(left, low - 4, kind, 4.5)
        drawing.word(left + 12, low, words, "small")
    return drawing.svg()


def _ratios(results: Results, contest: Contest) -> dict[str, float]:
    """Return how much better each rival is than ThreadLoader; below 1 it is worse."""
    ours = contest.of("threadloader")
    ratios = {
        loader: results.rounds.better(contest.of(loader), ours, contest.figure)[0]
        for loader in contest.rivals
    }
    return {loader: ratio.median for loader, ratio in ratios.items() if ratio is not None}


def builds_picture(results: Results) -> str:
    """Draw the rate by threads on builds with and without the GIL, next to the ideal line."""
    workloads = list(dict.fromkeys(contest.workload for contest in results.ordered()))
    drawing = Drawing(90 + 400 * len(workloads), 420, "Rate by threads, with and without the GIL")
    kinds = dict(zip(results.builds, "bacdef", strict=False))
    for number, name in enumerate(workloads):
        contests = {
            build: results.contests[build, name]
            for build in results.builds
            if (build, name) in results.contests
        }
        unit = _unit(results, contests)
        curves = {build: _by_threads(results, found, unit) for build, found in contests.items()}
        most = max((threads for curve in curves.values() for threads, _ in curve), default=1)
        top = max([most * 1.1, *(value for curve in curves.values() for _, value in curve)])
        panel = Panel(
            drawing,
            60 + 400 * number,
            70,
            320,
            230,
            Axis(0, most * 1.1, [n for n in (1, 2, 4, 8, 16, 32, 64, 128) if n <= most]),
            Axis(0, top, _steps(top)),
        )
        panel.axes(
            name.replace("_", " ").capitalize(),
            "threads",
            "times a bare loop on the build with the GIL",
        )
        panel.curve([(0, 0), (most, most)], "g dashed", dots=False)
        for build, curve in curves.items():
            panel.curve(curve, kinds[build])
    for place, (build, kind) in enumerate(kinds.items()):
        left = 70 + place * 190
        drawing.line([(left, 372), (left + 26, 372)], kind)
        drawing.word(left + 34, 376, f"{build}: {_gil(results, build)}", "small")
    left = 70 + len(kinds) * 190
    drawing.line([(left, 372), (left + 26, 372)], "g dashed")
    drawing.word(left + 34, 376, "ideal", "small")
    return drawing.svg()


def _gil(results: Results, build: str) -> str:
    return "without the GIL" if results.builds[build]["free_threaded"] else "with the GIL"


def _unit(results: Results, contests: Mapping[str, Contest]) -> float:
    """Return the rate of the bare loop on the first build."""
    contest = next(iter(contests.values()))
    spread = results.rounds.spread(contest.of("bare_loop")[0], "rate")
    return spread.median if spread else 1.0


def _by_threads(results: Results, contest: Contest, unit: float) -> list[tuple[float, float]]:
    return [
        (lane.question.workers, spread.median / unit)
        for lane in contest.of("threadloader")
        if (spread := results.rounds.spread(lane, "rate"))
    ]


def _times(value: float) -> str:
    return f"{value:g}x"


def _steps(top: float) -> Sequence[float]:
    """Return three to eight round numbers up to ``top``."""
    step = next(s for s in (0.25, 0.5, 1, 2, 4, 8, 16, 32) if top / s <= 8)
    return [step * n for n in range(int(top / step) + 1)]
