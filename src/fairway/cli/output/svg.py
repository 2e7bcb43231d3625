"""Plots as shapes of SVG, pure: numbers in, shapes out, which `templates/report.html` draws. Colours are the
page's (`c0` … `c7`): dark and print work.

Text in a scaled SVG shrinks with it, so each plot is drawn for the width it is shown at: a page has it twice.
"""

from __future__ import annotations

from collections.abc import Sequence
from decimal import Decimal
from typing import Final, NamedTuple

WIDE: Final = 920
NARROW: Final = 340
COLOURS: Final = 8
_CHAR: Final = 6.6
"""Roughly how wide a character of 12 px is."""


class SvgSeries(NamedTuple):
    """One colour of a plot."""

    name: str
    values: Sequence[Decimal]
    colour: int


class Bar(NamedTuple):
    """A row of a bar plot: its parts stand one after the other, the figure at its end."""

    name: str
    parts: Sequence[Decimal]
    said: str


class Shape(NamedTuple):
    """One element of an SVG; its title is shown under the pointer."""

    tag: str
    attributes: dict[str, str]
    text: str = ""
    title: str = ""


class SvgPlot(NamedTuple):
    """An SVG of this size."""

    width: int
    height: int
    label: str
    shapes: Sequence[Shape]


def columns_plot(ticks: Sequence[str], series: Sequence[SvgSeries], unit: str, width: int) -> SvgPlot:
    """Stacked columns over time, one for each tick."""
    height, top, bottom = (260 if width > 500 else 220), 12, 24
    steps = _steps(max((float(sum(s.values[i] for s in series)) for i in range(len(ticks))), default=0.0))
    left = 10 + _CHAR * max(len(_short(s)) for s in steps)
    scale = (height - top - bottom) / steps[-1]
    room = (width - left - 4) / max(1, len(ticks))
    bar = max(1.0, min(room - 2, 46.0) if room > 4 else room * 0.85)
    body = []
    for step in steps:
        y = height - bottom - step * scale
        ends = {"x1": f"{left:.1f}", "x2": str(width), "y1": f"{y:.1f}", "y2": f"{y:.1f}"}
        body.append(Shape("line", {"class": "grid"} | ends))
        body.append(_text("axis", left - 6, f"{y + 4:.1f}", _short(step), "end"))
    every = max(1, -(-int(_CHAR * 7) // max(1, int(room))))
    for i, tick in enumerate(ticks):
        x = left + i * room + (room - bar) / 2
        base = float(height - bottom)
        for s in series:
            tall = max(0.0, float(s.values[i])) * scale
            base -= tall
            if tall > 0:
                said = f"{tick}  {s.name}: {s.values[i]:,} {unit}"
                body.append(_rect(s.colour, x, base, bar, tall, said))
        if i % every == 0:
            body.append(_text("axis", x + bar / 2, str(height - 6), _tick(tick), "middle"))
    return SvgPlot(width, height, f"{unit} by day", body)


def bars_plot(bars: Sequence[Bar], names: Sequence[str], unit: str, width: int) -> SvgPlot:
    """Horizontal bars, the name above each: names may be long, and a phone is narrow."""
    longest = max((sum((max(Decimal(0), p) for p in b.parts), Decimal(0)) for b in bars), default=Decimal(0))
    scale = width / float(longest) if longest else 0.0
    body, y = [], 0.0
    for b in bars:
        body.append(_text("name", 0, f"{y + 13:.1f}", _cut(b.name, width, b.said)))
        body.append(_text("name num", width, f"{y + 13:.1f}", b.said, "end"))
        x = 0.0
        track = {"x": "0", "y": f"{y + 19:.1f}", "width": str(width), "height": "10", "rx": "2"}
        body.append(Shape("rect", {"class": "track"} | track))
        for i, part in enumerate(b.parts):
            long = max(0.0, float(part)) * scale
            if long > 0:
                said = f"{b.name}  {names[i]}: {part:,} {unit}"
                body.append(_rect(i % COLOURS, x, y + 19, long, 10, said))
            x += long
        y += 38
    return SvgPlot(width, round(max(y, 1)), f"{unit} by row", body)


def _rect(colour: int, x: float, y: float, wide: float, tall: float, said: str) -> Shape:
    place = {"x": f"{x:.2f}", "y": f"{y:.2f}", "width": f"{wide:.2f}", "height": f"{tall:.2f}"}
    return Shape("rect", {"class": f"c{colour}"} | place, title=said)


def _text(css: str, x: float, y: str, text: str, anchor: str = "start") -> Shape:
    return Shape("text", {"class": css, "x": f"{x:.1f}", "y": y, "text-anchor": anchor}, text)


def _steps(tallest: float) -> list[float]:
    """Round numbers from 0 to above the tallest."""
    if tallest <= 0:
        return [0.0, 1.0]
    size = 1.0
    while size * 4 < tallest:
        size *= 10
    while size * 4 > tallest * 10:
        size /= 10
    step = next(f * size / 10 for f in (1, 2, 2.5, 5, 10, 20, 25, 50) if f * size / 10 * 5 >= tallest)
    count = -(-tallest // step)
    return [step * i for i in range(int(count) + 1)]


def _short(value: float) -> str:
    for size, unit in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if value >= size:
            return f"{value / size:g}{unit}"
    return f"{value:g}"


def _tick(tick: str) -> str:
    """`2026-10-03` is `10-03`."""
    return tick[5:] if len(tick) == len("2026-10-03") else tick


def _cut(name: str, width: int, said: str) -> str:
    room = int(width / _CHAR) - len(said) - 2
    return name if len(name) <= room else name[: max(1, room - 1)] + "…"
