"""A bar chart as SVG, by hand: a bar for each loader, with the range of its rounds.

A browser picks the colours by ``prefers-color-scheme``; viewers that know no style sheets with
media queries get the light ones.
"""

from __future__ import annotations

from dataclasses import dataclass
from html import escape
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["Bar", "bar_chart"]

STYLE = """
text { font: 13px system-ui, -apple-system, "Segoe UI", Roboto, "DejaVu Sans", sans-serif; }
text { fill: #1f2328; }
.title { font-weight: 600; font-size: 15px; }
.small { font-size: 12px; fill: #59636e; }
.paper { fill: #ffffff; }
.grid { stroke: #d8dee4; }
.range { stroke: #1f2328; stroke-width: 1.5; }
.ours { fill: #0969da; }
.torch { fill: #bc4c00; }
.loop { fill: #8c959f; }
@media (prefers-color-scheme: dark) {
  text { fill: #f0f6fc; }
  .small { fill: #9198a1; }
  .paper { fill: #0d1117; }
  .grid { stroke: #2f363e; }
  .range { stroke: #f0f6fc; }
  .ours { fill: #4493f8; }
  .torch { fill: #f0883e; }
  .loop { fill: #656c76; }
}
"""
WIDTH, ROW, TOP, BESIDE, RIGHT = 760, 30, 76, 230, 110  # pixels
CHARACTER = 7.2  # pixels, at the most on average


@dataclass(frozen=True, slots=True)
class Bar:
    """One bar.

    Args:
        name: Beside it.
        value: Its length.
        low: Where the range begins.
        high: Where it ends.
        kind: ``ours``, ``torch`` or ``loop``.
    """

    name: str
    value: float
    low: float
    high: float
    kind: str


def bar_chart(title: str, unit: str, bars: Sequence[Bar]) -> str:
    """Return the text of an SVG file.

    Args:
        title: Above the bars.
        unit: Of the values.
        bars: From top to bottom, at least 1, each above 0.
    """
    top = max(bar.high for bar in bars)
    step = _step(top)
    beside = max(BESIDE, int(max(len(bar.name) for bar in bars) * CHARACTER) + 30)
    wide = WIDTH - BESIDE - RIGHT
    width, bottom = beside + wide + RIGHT, TOP + ROW * len(bars)
    height = bottom + 40
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" role="img">',
        f"<title>{escape(title)}</title>",
        f"<style>{STYLE}</style>",
        f'<rect class="paper" width="{width}" height="{height}"/>',
        _text(16, 28, title, "title"),
        _text(16, 48, f"{unit}; the line is the range of the rounds", "small"),
    ]
    for number in range(int(top / step) + 1):
        x = beside + wide * number * step / top
        parts.append(f'<line class="grid" x1="{x:.1f}" y1="{TOP}" x2="{x:.1f}" y2="{bottom}"/>')
        parts.append(_text(x, bottom + 20, f"{number * step:,.10g}", "small", "middle"))
    for row, bar in enumerate(bars):
        y = TOP + ROW * row
        long = wide * bar.value / top
        parts.append(_text(beside - 10, y + 19, bar.name, "", "end"))
        parts.append(
            f'<rect class="{bar.kind}" x="{beside}" y="{y + 5}" width="{long:.1f}" height="20"/>'
        )
        low, high = (beside + wide * value / top for value in (bar.low, bar.high))
        parts.append(
            f'<line class="range" x1="{low:.1f}" y1="{y + 15}" x2="{high:.1f}" y2="{y + 15}"/>'
        )
        parts.append(_text(beside + wide * bar.high / top + 8, y + 19, _number(bar.value)))
    return "\n".join([*parts, "</svg>"]) + "\n"


def _step(top: float) -> float:
    """Return the distance of grid lines, a round number, so that there are 3 to 8."""
    power = 10.0
    while power > top:
        power /= 10
    while power * 10 <= top:
        power *= 10
    for part in (5.0, 2.0, 1.0, 0.5, 0.2):
        if top / (power * part) >= 3:
            return power * part
    return power


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 10 else f"{value:.2f}"


def _text(x: float, y: float, text: str, kind: str = "", anchor: str = "start") -> str:
    return (
        f'<text class="{kind}" x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(text)}</text>'
    )
