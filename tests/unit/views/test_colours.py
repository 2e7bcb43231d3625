"""A team keeps its colour, and colours can be told apart."""

from __future__ import annotations

from importlib.resources import files
from itertools import combinations
from math import dist

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairway.views.colours import LOOKS, PALETTE, assigned, colour_class, palette_css

Rgb = tuple[float, float, float]
NAMES = st.lists(st.text("abcdef", min_size=1, max_size=3), unique=True, max_size=40)


@given(first=NAMES, then=NAMES)
def test_a_new_team_changes_no_other_colour(first: list[str], then: list[str]) -> None:
    before = assigned({}, first)
    after = assigned(before, then)
    assert {name: after[name] for name in first} == before
    assert len(set(after.values())) == len(after)  # none twice, until the palette repeats


def test_colours_repeat_only_after_a_lighter_round() -> None:
    assert len({colour_class(n) for n in range(LOOKS)}) == LOOKS == 24
    assert colour_class(LOOKS) == colour_class(0) == "t0"
    assert colour_class(None) == "others"


def test_pages_have_the_palette() -> None:
    sheet = (files("fairway.web") / "static" / "colours.css").read_text()
    assert sheet.partition("\n")[2] == palette_css()


@pytest.mark.parametrize(("theme", "ground", "ink"), [(0, "#ffffff", "#ffffff"), (1, "#171b1f", "#06120d")])
def test_colours_stand_out_and_carry_text(theme: int, ground: str, ink: str) -> None:
    for pair in PALETTE:
        assert contrast(pair[theme], ground) >= 4.5
        assert contrast(pair[theme], ink) >= 4.5


@pytest.mark.parametrize("theme", [0, 1])
def test_any_two_colours_differ_for_everyone(theme: int) -> None:
    """Also to people who see no green or no red: matrices of Machado et al., 2009."""
    for one, other in combinations([linear(pair[theme]) for pair in PALETTE], 2):
        for seen in (NORMAL, NO_GREEN, NO_RED):
            assert dist(lab(seen, one), lab(seen, other)) >= 11


NORMAL = ((1.0, 0.0, 0.0), (0.0, 1.0, 0.0), (0.0, 0.0, 1.0))
NO_GREEN = ((0.367322, 0.860646, -0.227968), (0.280085, 0.672501, 0.047413), (-0.01182, 0.04294, 0.968881))
NO_RED = ((0.152286, 1.052583, -0.204868), (0.114503, 0.786281, 0.099216), (-0.003882, -0.048116, 1.051998))


def linear(text: str) -> Rgb:
    r, g, b = (int(text[i : i + 2], 16) / 255 for i in (1, 3, 5))
    return _linear(r), _linear(g), _linear(b)


def _linear(c: float) -> float:
    return c / 12.92 if c <= 0.04045 else float(((c + 0.055) / 1.055) ** 2.4)


def contrast(one: str, other: str) -> float:
    low, high = sorted(0.2126 * r + 0.7152 * g + 0.0722 * b for r, g, b in map(linear, (one, other)))
    return (high + 0.05) / (low + 0.05)


def lab(seen: tuple[Rgb, Rgb, Rgb], rgb: Rgb) -> Rgb:
    r, g, b = (min(1.0, max(0.0, sum(m * c for m, c in zip(row, rgb, strict=True)))) for row in seen)
    x, y, z = (
        _curve(value)
        for value in (
            (0.4124 * r + 0.3576 * g + 0.1805 * b) / 0.95047,
            0.2126 * r + 0.7152 * g + 0.0722 * b,
            (0.0193 * r + 0.1192 * g + 0.9505 * b) / 1.08883,
        )
    )
    return 116 * y - 16, 500 * (x - y), 200 * (y - z)


def _curve(t: float) -> float:
    return float(t ** (1 / 3)) if t > (6 / 29) ** 3 else t / (3 * (6 / 29) ** 2) + 4 / 29
