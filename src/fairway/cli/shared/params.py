"""The click parameter type of ages: 30m, 2h, 7d."""

from __future__ import annotations

import click

from fairway.model.text import parse_duration


class Age(click.ParamType[int]):
    """An age, converted to seconds."""

    name = "age"

    def convert(self, value: str | int, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """Parse an age into seconds."""
        seconds = parse_duration(str(value))
        if seconds is None or seconds > 100 * 366 * 86_400:
            self.fail(f"{value!r} is not an age; write it like 30m, 2h or 7d", param, ctx)
        return seconds
