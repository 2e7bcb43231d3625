"""Plots as inline SVG, pure: numbers in, text out. Colours are the page's (`c0` … `c7`): dark and print work.

Text in a scaled SVG shrinks with it, so each plot is drawn for the width it is shown at: a page has it twice.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal
from html import escape
from typing import Final

WIDE: Final = 920
NARROW: Final = 340
COLOURS: Final = 8
_CHAR: Final = 6.6
"""Roughly how wide a character of 12 px is."""


@dataclass(frozen=True, slots=True)
class Series:
    """One colour of a plot."""

    name: str
    values: Sequence[Decimal]
    colour: int


@dataclass(frozen=True, slots=True)
class Bar:
    """A row of a bar plot: its parts stand one after the other."""

    name: str
    parts: Sequence[Decimal]
    said: str
    """The figure at its end."""


def columns_plot(ticks: Sequence[str], series: Sequence[Series], unit: str, width: int) -> str:
    """Stacked columns over time, one for each tick."""
    height, top, bottom = (260 if width > 500 else 220), 12, 24
    tallest = max(
        (sum((s.values[i] for s in series), Decimal(0)) for i in range(len(ticks))), default=Decimal(0)
    )
    steps = _steps(float(tallest))
    left = 10 + _CHAR * max(len(_short(s)) for s in steps)
    scale = (height - top - bottom) / steps[-1]
    room = (width - left - 4) / max(1, len(ticks))
    bar = max(1.0, min(room - 2, 46.0) if room > 4 else room * 0.85)
    body = []
    for step in steps:
        y = height - bottom - step * scale
        body.append(f'<line class="grid" x1="{left:.1f}" x2="{width}" y1="{y:.1f}" y2="{y:.1f}"/>')
        body.append(
            f'<text class="axis" x="{left - 6:.1f}" y="{y + 4:.1f}" text-anchor="end">{_short(step)}</text>'
        )
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
            body.append(
                f'<text class="axis" x="{x + bar / 2:.1f}" y="{height - 6}" text-anchor="middle">'
                f"{escape(_tick(tick))}</text>"
            )
    return _svg(width, height, f"{unit} by day", body)


def bars_plot(bars: Sequence[Bar], names: Sequence[str], unit: str, width: int) -> str:
    """Horizontal bars, the name above each: names may be long, and a phone is narrow."""
    longest = max((sum((max(Decimal(0), p) for p in b.parts), Decimal(0)) for b in bars), default=Decimal(0))
    scale = width / float(longest) if longest else 0.0
    body, y = [], 0.0
    for b in bars:
        body.append(f'<text class="name" x="0" y="{y + 13:.1f}">{escape(_cut(b.name, width, b.said))}</text>')
        body.append(
            f'<text class="name num" x="{width}" y="{y + 13:.1f}" text-anchor="end">{escape(b.said)}</text>'
        )
        x = 0.0
        body.append(f'<rect class="track" x="0" y="{y + 19:.1f}" width="{width}" height="10" rx="2"/>')
        for i, part in enumerate(b.parts):
            long = max(0.0, float(part)) * scale
            if long > 0:
                said = f"{b.name}  {names[i]}: {part:,} {unit}"
                body.append(_rect(i % COLOURS, x, y + 19, long, 10, said))
            x += long
        y += 38
    return _svg(width, max(y, 1), f"{unit} by row", body)


def legend(names: Sequence[str], colours: Sequence[int]) -> str:
    """What the colours mean."""
    said = "".join(
        f'<li><svg class="key" viewBox="0 0 10 10" aria-hidden="true">{_rect(c, 0, 0, 10, 10)}</svg>'
        f"{escape(name)}</li>"
        for name, c in zip(names, colours, strict=True)
    )
    return f'<ul class="legend">{said}</ul>'


def _rect(colour: int, x: float, y: float, wide: float, tall: float, said: str = "") -> str:
    title = f"<title>{escape(said)}</title>" if said else ""
    place = f'x="{x:.2f}" y="{y:.2f}" width="{wide:.2f}" height="{tall:.2f}"'
    return f'<rect class="c{colour}" {place}>{title}</rect>'


def _svg(width: int, height: float, title: str, body: Sequence[str]) -> str:
    return (
        f'<svg viewBox="0 0 {width} {height:.0f}" width="{width}" height="{height:.0f}" role="img" '
        f'aria-label="{escape(title)}">{"".join(body)}</svg>'
    )


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
