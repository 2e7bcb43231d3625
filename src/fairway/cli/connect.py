"""The `--context` and `--url` options, and the API client that they select."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import click

from fairway.client.client import Client
from fairway.client.contexts import chosen_target

Function = TypeVar("Function", bound=Callable[..., Any])


def server_options(function: Function) -> Function:
    """Add `--context` and `--url`. A token is not an option: process lists and histories would store it."""
    function = click.option("--context", metavar="NAME", help="A context of `fairway context list`.")(
        function
    )
    return click.option(
        "--url", metavar="URL", help="A server by its URL; the token as FAIRWAY_TOKEN_FILE says."
    )(function)


def connect(context: str | None, url: str | None) -> Client:
    """Return a client of the server selected by the flags, FAIRWAY_* or contexts, in this order."""
    if context and url:
        raise click.UsageError("give --context or --url, not both")
    return Client(chosen_target(context, url))
