"""The command group `fairway token`: API tokens."""

from __future__ import annotations

import re
from datetime import UTC, datetime

import click

from fairway.cli.connect import connect, server_options
from fairway.cli.output.fleet import tokens_view
from fairway.cli.output.format import Format, Listing, moment, output_option, show
from fairway.cli.parameter import ParsedParam
from fairway.model.access import Role

_UNITS = {"m": 60, "h": 3600, "d": 86400, "w": 7 * 86400}


def parse_lifetime(text: str) -> int:
    """Parse the lifetime of a token, e.g. 12h or 90d, into seconds."""
    found = re.fullmatch(r"([1-9][0-9]{0,8})([mhdw])", text)
    if found is None:
        raise ValueError(f"{text!r} is not a length of time; write it like 12h, 90d or 4w")
    return int(found[1]) * _UNITS[found[2]]


@click.group(
    epilog="""\b
Examples:
  fairway token create grafana --role viewer --expires 90d > grafana.token
  fairway token list
  fairway token revoke grafana
"""
)
def token() -> None:
    """Make, list and revoke the tokens that open the API."""


@token.command(
    epilog="""\b
Examples:
  fairway token create grafana --role viewer --expires 90d > grafana.token
  fairway token create dana --role operator
  fairway token create alice-laptop --role member --user alice
\b
Roles, each may do all that the ones before it may:
  viewer     reads
  member     submits jobs for its teams, reads and ends its own
  lead       also reads, holds and ends other members' jobs of its teams
  operator   runs the fleet
  admin      decides who else may
"""
)
@click.argument("name")
@click.option("--role", type=click.Choice([r.value for r in Role]), required=True, help="What it may do.")
@click.option(
    "--user",
    metavar="LOGIN",
    help="Whose it is, as the engines and the fleet file name them.  [as the token is called]",
)
@click.option(
    "--expires",
    type=ParsedParam("duration", parse_lifetime),
    metavar="TIME",
    help="How long it lives, e.g. 12h or 90d.  [never ends]",
)
@server_options
def create(
    name: str, role: str, user: str | None, expires: int | None, context: str | None, url: str | None
) -> None:
    """Make a token called NAME and print it, this once.

    The token goes to stdout, everything else to stderr, so that it can be sent straight to a file.
    """
    with connect(context, url) as client:
        token = client.create_token(name, Role(role), expires, user)
    click.echo(token.secret)
    expiry = f"expires {moment(token.expires_at, '')}" if token.expires_at else "never expires"
    owner = f" of {token.user}" if token.user != token.name else ""
    click.echo(f"made token {token.name}{owner} ({token.role}, {expiry}); it is not shown again", err=True)


@token.command("list", epilog="\b\nExamples:\n  fairway token list\n  fairway token list -o json\n")
@server_options
@output_option
def list_(context: str | None, url: str | None, output: Format) -> None:
    """Show every token ever made, never their secrets."""
    with connect(context, url) as client:
        found = client.tokens()
    show(Listing(found, tokens_view(found, datetime.now(UTC))), output)


@token.command(epilog="\b\nExamples:\n  fairway token revoke grafana\n")
@click.argument("name")
@server_options
def revoke(name: str, context: str | None, url: str | None) -> None:
    """End the life of the token called NAME, at once."""
    with connect(context, url) as client:
        revoked = client.revoke_token(name)
    click.echo(f"revoked token {revoked.name}", err=True)
