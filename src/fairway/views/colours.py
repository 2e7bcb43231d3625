"""Fixed colours of teams, the same on every page and in every report. Pure.

A team has a number for good; its colour is that number in the palette. `web/static/colours.css` and the HTML
report have the same palette.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

PALETTE: Final = (
    ("#2f6f9f", "#6fb1e0"),
    ("#ad5910", "#ce752e"),
    ("#045b45", "#4dcaa3"),
    ("#3d6bd0", "#6286f0"),
    ("#2f3300", "#ced17a"),
    ("#667543", "#82925d"),
    ("#5b0b4c", "#b17aa1"),
    ("#9a5d7b", "#fdb8d8"),
    ("#724602", "#f0a74a"),
    ("#1262aa", "#6ca2f0"),
    ("#69426c", "#b475ba"),
    ("#6a4a22", "#d8ae82"),
)
"""Of light and dark pages. Text on them is white or near-black at 4.5:1, and any two differ by a CIELAB
distance of 11 or more, also to people who see no red or no green."""

LOOKS: Final = 2 * len(PALETTE)
"""The palette, and the palette again in a lighter tint; then colours repeat."""
OTHERS: Final = "others"


def assigned(known: Mapping[str, int], names: Iterable[str]) -> dict[str, int]:
    """Give each name without a number the next one; known names keep theirs."""
    found = dict(known)
    following = max(found.values(), default=-1) + 1
    for name in names:
        if name not in found:
            found[name] = following
            following += 1
    return found


def colour_class(number: int | None) -> str:
    """Return the CSS class of a number: `t0` to `t23`. None is work without a team."""
    return OTHERS if number is None else f"t{number % LOOKS}"


def palette_css() -> str:
    """Return the CSS of all looks: variables by theme, fills of SVG and backgrounds of HTML."""
    light = " ".join(f"--t{n}: {pair[0]};" for n, pair in enumerate(PALETTE))
    dark = " ".join(f"--t{n}: {pair[1]};" for n, pair in enumerate(PALETTE))
    size = len(PALETTE)
    tints = " ".join(f"--t{n + size}: color-mix(in srgb, var(--t{n}) 58%, var(--card));" for n in range(size))
    fills = "\n".join(f".t{n} {{ fill: var(--t{n}); background: var(--t{n}); }}" for n in range(LOOKS))
    tinted = ", ".join(f"rect.t{n} ~ text" for n in range(size, LOOKS))
    light, dark = f"{light} --others: #6b7681;", f"{dark} --others: #8b97a2;"
    return (
        f":root {{ {light} {tints} }}\n"
        f'@media (prefers-color-scheme: dark) {{ :root:not([data-theme="light"]) {{ {dark} }} }}\n'
        f':root[data-theme="dark"] {{ {dark} }}\n'
        f"{fills}\n.others {{ fill: var(--others); background: var(--others); }}\n"
        f"{tinted} {{ fill: var(--ink); }}\n"
    )
