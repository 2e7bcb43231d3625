"""The command group `fairway session`: sessions of the web pages."""

from __future__ import annotations

import click

from fairway.cli.connect import connect, server_options
from fairway.cli.group import Group
from fairway.cli.output.fleet import sessions_view
from fairway.cli.output.format import Format, Listing, output_option, show
from fairway.model.text import count


@click.group(
    cls=Group,
    epilog="""\b
Examples:
  fairway session list
  fairway session revoke --user alice
""",
)
def session() -> None:
    """List and end sign-ins to the web pages."""


@session.command(
    "list", epilog="\b\nExamples:\n  fairway session list\n  fairway session list --user alice -o json\n"
)
@click.option("--user", metavar="LOGIN", help="Only this user.")
@server_options
@output_option
def list_(user: str | None, context: str | None, url: str | None, output: Format) -> None:
    """List users who are signed in to the web pages."""
    with connect(context, url) as client:
        found = client.sessions(user)
    show(Listing(found, sessions_view(found)), output)


@session.command(epilog="\b\nExamples:\n  fairway session revoke --user alice\n")
@click.option("--user", metavar="LOGIN", required=True, help="User to sign out.")
@server_options
def revoke(user: str, context: str | None, url: str | None) -> None:
    """Sign a user out of all browsers immediately.

    At the next single sign-on, their role and groups are read again. Tokens stay valid; `fairway token
    revoke` revokes a token and ends the sessions that were started with it.
    """
    with connect(context, url) as client:
        ended = client.revoke_sessions(user)
    tokens = f", and revoked {count(ended.tokens, 'token')} of  fairway login" if ended.tokens else ""
    click.echo(f"Ended {count(ended.ended, 'session')} of {ended.user}{tokens}", err=True)
