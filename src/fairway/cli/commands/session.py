"""The command group `fairway session`: sessions of the web pages."""

from __future__ import annotations

import click

from fairway.cli.connect import connect, server_options
from fairway.cli.output.fleet import sessions_view
from fairway.cli.output.format import Format, Listing, output_option, show


@click.group(
    epilog="""\b
Examples:
  fairway session list
  fairway session revoke --user alice
"""
)
def session() -> None:
    """List who is signed in to the pages, and sign them out."""


@session.command(
    "list", epilog="\b\nExamples:\n  fairway session list\n  fairway session list --user alice -o json\n"
)
@click.option("--user", metavar="LOGIN", help="Only theirs.")
@server_options
@output_option
def list_(user: str | None, context: str | None, url: str | None, output: Format) -> None:
    """Show who is signed in to the pages."""
    with connect(context, url) as client:
        found = client.sessions(user)
    show(Listing(found, sessions_view(found)), output)


@session.command(epilog="\b\nExamples:\n  fairway session revoke --user alice\n")
@click.option("--user", metavar="LOGIN", required=True, help="Who is signed out.")
@server_options
def revoke(user: str, context: str | None, url: str | None) -> None:
    """Sign a user out of every browser, at once.

    Their role and groups are read again when they sign in by single sign-on. A token stays valid:
    fairway token revoke  ends it, and the sessions made with it.
    """
    with connect(context, url) as client:
        ended = client.revoke_sessions(user)
    noun = "session" if ended.ended == 1 else "sessions"
    click.echo(f"ended {ended.ended} {noun} of {ended.user}", err=True)
