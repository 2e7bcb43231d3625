"""The type of click parameters that a function parses. Imports only click: `server` must start fast."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import click

Value = TypeVar("Value")


class ParsedParam(click.ParamType[Value]):
    """A click parameter type that parses text by a function, whose ValueError becomes a usage error."""

    def __init__(self, name: str, parse: Callable[[str], Value]) -> None:
        self.name = name
        self._parse = parse

    def convert(self, value: str | Value, param: click.Parameter | None, ctx: click.Context | None) -> Value:
        """Parse text; click also passes values that are parsed already."""
        if not isinstance(value, str):
            return value
        try:
            return self._parse(value)
        except ValueError as error:
            self.fail(str(error), param, ctx)
