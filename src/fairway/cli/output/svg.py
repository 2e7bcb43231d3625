"""Draw plots as SVG shapes, which `templates/report.html` renders. Pure: numbers in, shapes out.

Colours are CSS classes of the page (`c0` to `c7` of kinds, `t0` to `t23` of teams), so that
dark mode and print work.

Text shrinks with a scaled SVG, so each plot is drawn for both widths it is shown at.
"""

from __future__ import annotations

from collections.abc import Sequence
from decimal import Decimal
from typing import Final, NamedTuple

WIDE: Final = 920
NARROW: Final = 340
COLOURS: Final = 8
"""Of kinds: `c0` to `c7`."""
_CHAR: Final = 6.6
"""The approximate width of a character of 12 px."""


class SvgSeries(NamedTuple):
    """A series of values, drawn in one colour."""

    name: str
    values: Sequence[Decimal]
    colour: str
    """A CSS class."""


class Bar(NamedTuple):
    """A row of a bar plot: its parts follow each other, with a caption at the end."""

    name: str
    parts: Sequence[Decimal]
    caption: str


class Shape(NamedTuple):
    """An SVG element; its title is the tooltip."""

    tag: str
    attributes: dict[str, str]
    text: str = ""
    title: str = ""


class SvgPlot(NamedTuple):
    """An SVG image: its size, accessible label and elements."""

    width: int
    height: int
    label: str
    shapes: Sequence[Shape]


def columns_plot(ticks: Sequence[str], series: Sequence[SvgSeries], unit: str, width: int) -> SvgPlot:
    """Draw stacked columns over time, one for each tick."""
    height, top, bottom = (260 if width > 500 else 220), 12, 24
    steps = _steps(max((float(sum(s.values[i] for s in series)) for i in range(len(ticks))), default=0.0))
    left = 10 + _CHAR * max(len(_short(s)) for s in steps)
    scale = (height - top - bottom) / steps[-1]
    slot = (width - left - 4) / max(1, len(ticks))
    bar_width = max(1.0, min(slot - 2, 46.0) if slot > 4 else slot * 0.85)
    shapes = []
    for step in steps:
        y = height - bottom - step * scale
        ends = {"x1": f"{left:.1f}", "x2": str(width), "y1": f"{y:.1f}", "y2": f"{y:.1f}"}
        shapes.append(Shape("line", {"class": "grid"} | ends))
        shapes.append(_text("axis", left - 6, f"{y + 4:.1f}", _short(step), "end"))
    label_every = max(1, -(-int(_CHAR * 7) // max(1, int(slot))))
    for i, tick in enumerate(ticks):
        x = left + i * slot + (slot - bar_width) / 2
        base = float(height - bottom)
        for s in series:
            bar_height = max(0.0, float(s.values[i])) * scale
            base -= bar_height
            if bar_height > 0:
                title = f"{tick}  {s.name}: {s.values[i]:,} {unit}"
                shapes.append(_rect(s.colour, x, base, bar_width, bar_height, title))
        if i % label_every == 0:
            shapes.append(_text("axis", x + bar_width / 2, str(height - 6), _tick(tick), "middle"))
    return SvgPlot(width, height, f"{unit} by day", shapes)


def bars_plot(bars: Sequence[Bar], names: Sequence[str], unit: str, width: int) -> SvgPlot:
    """Draw horizontal bars, the name above each: names may be long, and a phone is narrow."""
    maximum = max((sum((max(Decimal(0), p) for p in b.parts), Decimal(0)) for b in bars), default=Decimal(0))
    scale = width / float(maximum) if maximum else 0.0
    shapes, y = [], 0.0
    for b in bars:
        shapes.append(_text("name", 0, f"{y + 13:.1f}", _cut(b.name, width, b.caption)))
        shapes.append(_text("name num", width, f"{y + 13:.1f}", b.caption, "end"))
        x = 0.0
        track = {"x": "0", "y": f"{y + 19:.1f}", "width": str(width), "height": "10", "rx": "2"}
        shapes.append(Shape("rect", {"class": "track"} | track))
        for i, part in enumerate(b.parts):
            part_width = max(0.0, float(part)) * scale
            if part_width > 0:
                title = f"{b.name}  {names[i]}: {part:,} {unit}"
                shapes.append(_rect(f"c{i % COLOURS}", x, y + 19, part_width, 10, title))
            x += part_width
        y += 38
    return SvgPlot(width, round(max(y, 1)), f"{unit} by row", shapes)


def _rect(colour: str, x: float, y: float, width: float, height: float, title: str) -> Shape:
    place = {"x": f"{x:.2f}", "y": f"{y:.2f}", "width": f"{width:.2f}", "height": f"{height:.2f}"}
    return Shape("rect", {"class": colour} | place, title=title)


def _text(css: str, x: float, y: str, text: str, anchor: str = "start") -> Shape:
    return Shape("text", {"class": css, "x": f"{x:.1f}", "y": y, "text-anchor": anchor}, text)


def _steps(maximum: float) -> list[float]:
    """Return round numbers from 0 to at least `maximum`, for the axis."""
    if maximum <= 0:
        return [0.0, 1.0]
    size = 1.0
    while size * 4 < maximum:
        size *= 10
    while size * 4 > maximum * 10:
        size /= 10
    step = next(f * size / 10 for f in (1, 2, 2.5, 5, 10, 20, 25, 50) if f * size / 10 * 5 >= maximum)
    count = -(-maximum // step)
    return [step * i for i in range(int(count) + 1)]


def _short(value: float) -> str:
    for size, unit in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if value >= size:
            return f"{value / size:g}{unit}"
    return f"{value:g}"


def _tick(tick: str) -> str:
    """Shorten `2026-10-03` to `10-03`."""
    return tick[5:] if len(tick) == len("2026-10-03") else tick


def _cut(name: str, width: int, caption: str) -> str:
    max_chars = int(width / _CHAR) - len(caption) - 2
    return name if len(name) <= max_chars else name[: max(1, max_chars - 1)] + "…"
