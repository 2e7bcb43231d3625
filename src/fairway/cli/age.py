"""Ages as people write them on the command line: 30m, 2h, 7d."""

from __future__ import annotations

import click

from fairway.model.duration import parse_duration


class Age(click.ParamType[int]):
    """How long ago, in seconds."""

    name = "age"

    def convert(self, value: str | int, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """Seconds."""
        seconds = parse_duration(str(value))
        if seconds is None or seconds > 100 * 366 * 86_400:
            self.fail(f"{value!r} is not an age; write it like 30m, 2h or 7d", param, ctx)
        return seconds
