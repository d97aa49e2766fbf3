"""Plots as SVG, by hand: axes, lines, dots and words, in colours for light and for dark pages.

A browser picks the colours by ``prefers-color-scheme``, unless the picture has those of one scheme;
viewers that know no style sheets with media queries get the light ones.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from html import escape
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

__all__ = ["Axis", "Drawing", "Panel"]

LIGHT = """
text { font: 13px system-ui, -apple-system, "Segoe UI", Roboto, "DejaVu Sans", sans-serif; }
text, .ink { fill: #1f2328; }
.title { font-weight: 600; font-size: 15px; }
.small { font-size: 12px; fill: #59636e; }
.paper { fill: #ffffff; }
.grid { stroke: #d8dee4; stroke-width: 1; }
.frame { stroke: #8c959f; stroke-width: 1; fill: none; }
.line { fill: none; stroke-width: 2.5; stroke-linejoin: round; }
.a { stroke: #0969da; } .dot.a, .word.a { fill: #0969da; }
.b { stroke: #bc4c00; } .dot.b, .word.b { fill: #bc4c00; }
.c { stroke: #1a7f37; } .dot.c, .word.c { fill: #1a7f37; }
.d { stroke: #8250df; } .dot.d, .word.d { fill: #8250df; }
.e { stroke: #bf3989; } .dot.e, .word.e { fill: #bf3989; }
.f { stroke: #7d4e00; } .dot.f, .word.f { fill: #7d4e00; }
.g { stroke: #8c959f; } .dot.g { fill: #8c959f; } .word.g { fill: #59636e; }
.dot, .word { stroke: none; }
.dashed { stroke-dasharray: 5 4; }
"""
DARK = """
  text, .ink { fill: #f0f6fc; }
  .small, .word.g { fill: #9198a1; }
  .paper { fill: #0d1117; }
  .grid { stroke: #2f363e; }
  .frame { stroke: #656c76; }
  .a { stroke: #58a6ff; } .dot.a, .word.a { fill: #58a6ff; }
  .b { stroke: #f0883e; } .dot.b, .word.b { fill: #f0883e; }
  .c { stroke: #3fb950; } .dot.c, .word.c { fill: #3fb950; }
  .d { stroke: #bc8cff; } .dot.d, .word.d { fill: #bc8cff; }
  .e { stroke: #f778ba; } .dot.e, .word.e { fill: #f778ba; }
  .f { stroke: #e3b341; } .dot.f, .word.f { fill: #e3b341; }
  .g { stroke: #656c76; } .dot.g { fill: #656c76; }
"""
STYLES = {
    "": LIGHT + "@media (prefers-color-scheme: dark) {" + DARK + "}\n",
    "light": LIGHT,
    "dark": LIGHT + DARK,
}


@dataclass(frozen=True, slots=True)
class Axis:
    """One direction of a plot.

    Args:
        low: The value at its beginning.
        high: The value at its end.
        ticks: Values that get a line and a number.
        logarithmic: Whether equal ratios are equally far apart.
        show: Returns a tick's number as text.
    """

    low: float
    high: float
    ticks: Sequence[float]
    logarithmic: bool = False
    show: Callable[[float], str] = "{:g}".format

    def part(self, value: float) -> float:
        """Return where a value is, from 0 to 1; beyond the ends it is at the end."""
        value = min(max(value, self.low), self.high)
        if self.logarithmic:
            return math.log(value / self.low) / math.log(self.high / self.low)
        return (value - self.low) / (self.high - self.low)


@dataclass(slots=True)
class Drawing:
    """A picture that grows piece by piece.

    Args:
        width: In pixels, like ``height``.
        height: Of the whole picture.
        title: What a screen reader says.
    """

    width: int
    height: int
    title: str
    parts: list[str] = field(default_factory=list)

    def word(self, x: float, y: float, text: str, kind: str = "", anchor: str = "start") -> None:
        """Write; ``(x, y)`` is the baseline's beginning, middle or end."""
        self.parts.append(
            f'<text class="{kind}" x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">'
            f"{escape(text)}</text>"
        )

    def line(self, points: Sequence[tuple[float, float]], kind: str) -> None:
        """Draw straight lines from point to point."""
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
        self.parts.append(f'<polyline class="line {kind}" points="{path}"/>')

    def rule(self, x1: float, y1: float, x2: float, y2: float, kind: str = "grid") -> None:
        """Draw one thin line."""
        self.parts.append(
            f'<line class="{kind}" x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}"/>'
        )

    def dot(self, x: float, y: float, kind: str, radius: float = 4) -> None:
        """Draw a dot."""
        self.parts.append(f'<circle class="dot {kind}" cx="{x:.1f}" cy="{y:.1f}" r="{radius}"/>')

    def bar(self, x: float, y: float, width: float, height: float, kind: str) -> None:
        """Draw a filled rectangle; ``(x, y)`` is its upper left corner."""
        self.parts.append(
            f'<rect class="dot {kind}" x="{x:.1f}" y="{y:.1f}" '
            f'width="{width:.1f}" height="{height:.1f}"/>'
        )

    def svg(self, scheme: str = "") -> str:
        """Return the file's text, with the colours of ``"light"``, ``"dark"`` or both."""
        size = f'width="{self.width}" height="{self.height}"'
        head = (
            f'<svg xmlns="http://www.w3.org/2000/svg" {size} '
            f'viewBox="0 0 {self.width} {self.height}" role="img">'
        )
        paper = f'<rect class="paper" {size}/>'
        body = [
            head,
            f"<title>{escape(self.title)}</title>",
            f"<style>{STYLES[scheme]}</style>",
            paper,
        ]
        return "\n".join([*body, *self.parts, "</svg>"]) + "\n"


@dataclass(slots=True)
class Panel:
    """A plot within a drawing.

    Args:
        drawing: What it is drawn on.
        left: Of its frame, in pixels, like ``top``, ``width`` and ``height``.
        top: The smaller, the higher.
        width: Of the frame.
        height: Of the frame.
        x: The axis to the right.
        y: The axis upwards.
    """

    drawing: Drawing
    left: float
    top: float
    width: float
    height: float
    x: Axis
    y: Axis

    def at(self, x: float, y: float) -> tuple[float, float]:
        """Return where two values are, in pixels."""
        return (
            self.left + self.width * self.x.part(x),
            self.top + self.height * (1 - self.y.part(y)),
        )

    def axes(self, title: str, below: str, beside: str) -> None:
        """Draw the ticks and what the axes are."""
        draw, bottom = self.drawing, self.top + self.height
        for value in self.x.ticks:
            x, _ = self.at(value, self.y.low)
            draw.rule(x, self.top, x, bottom)
            draw.word(x, bottom + 18, self.x.show(value), "small", "middle")
        for value in self.y.ticks:
            _, y = self.at(self.x.low, value)
            draw.rule(self.left, y, self.left + self.width, y)
            draw.word(self.left - 7, y + 4, self.y.show(value), "small", "end")
        draw.word(self.left, self.top - 26, title, "title")
        draw.word(self.left, self.top - 9, beside, "small")
        draw.word(self.left + self.width / 2, bottom + 36, below, "small", "middle")

    def curve(self, points: Sequence[tuple[float, float]], kind: str, *, dots: bool = True) -> None:
        """Draw a curve through values."""
        places = [self.at(*point) for point in points]
        self.drawing.line(places, kind)
        for x, y in places if dots else ():
            self.drawing.dot(x, y, kind)
