"""The start-up message of a server, and the context `local` that connects the next command to it."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from fairway.client.contexts import Context, config_file, read_contexts, write_contexts
from fairway.model.errors import FairwayError

if TYPE_CHECKING:
    from fairway.server import StartedServer

LOCAL: Final = "local"


def announce(started: StartedServer, ca_file: Path | None) -> None:
    """Print the server's URL and fleet, and add the context `local` for it."""
    fleet = f"fleet {started.fleet}" if started.fleet else "without a fleet (add one with -f FILE)"
    verb = "serves" if started.answers else "looks after"
    click.echo(f"fairway {verb} {fleet} on {started.url}", err=True)
    if started.answers and os.access(started.admin_token_file, os.R_OK):
        _add_context(started, ca_file)


def _add_context(started: StartedServer, ca_file: Path | None) -> None:
    """Point the context `local` to this server, unless the user gave that name to another server."""
    path = config_file()
    context = Context(
        LOCAL, started.url, str(started.admin_token_file), str(ca_file.absolute()) if ca_file else None
    )
    try:
        contexts = read_contexts(path)
        found = contexts.find(LOCAL)
        if found is not None and found.token_file != context.token_file:
            click.echo(
                f"the context {LOCAL} belongs to another server; the token is in {context.token_file}",
                err=True,
            )
            return
        changed = contexts.adding(context)
        if changed != contexts:
            write_contexts(path, changed)
    except FairwayError as error:  # the server works without a context
        click.echo(f"no context added: {error.message}; the token is in {context.token_file}", err=True)
        return
    if started.made_admin:
        usage = "" if changed.current == LOCAL else f"; switch to it with:  fairway context use {LOCAL}"
        click.echo(f"created an admin token in {context.token_file} and the context {LOCAL}{usage}", err=True)
