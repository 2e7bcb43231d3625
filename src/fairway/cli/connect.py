"""The options that say which server to ask, and the client they make."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import click

from fairway.client.client import Client
from fairway.client.contexts import chosen_target

Function = TypeVar("Function", bound=Callable[..., Any])


def server_options(function: Function) -> Function:
    """Adds `--context` and `--url`. A token is never an option: process lists and histories would keep it."""
    function = click.option("--context", metavar="NAME", help="A context of `fairway context list`.")(
        function
    )
    return click.option(
        "--url", metavar="URL", help="A server by its URL; the token as FAIRWAY_TOKEN_FILE says."
    )(function)


def connect(context: str | None, url: str | None) -> Client:
    """A client of the server that flags, FAIRWAY_* and contexts choose, in this order."""
    if context and url:
        raise click.UsageError("give --context or --url, not both")
    return Client(chosen_target(context, url))
