"""The command group `fairway token`: API tokens."""

from __future__ import annotations

import re
from datetime import UTC, datetime

import click

from fairway.cli.connect import connect, server_options
from fairway.cli.group import Group
from fairway.cli.output.fleet import tokens_view
from fairway.cli.output.format import Format, Listing, moment, output_option, show
from fairway.cli.parameter import ParsedParam
from fairway.model.access import Role

_UNITS = {"m": 60, "h": 3600, "d": 86400, "w": 7 * 86400}


def parse_lifetime(text: str) -> int:
    """Parse the lifetime of a token, e.g. 12h or 90d, into seconds."""
    found = re.fullmatch(r"([1-9][0-9]{0,8})([mhdw])", text)
    if found is None:
        raise ValueError(f"{text!r} is not a duration; use 12h, 90d or 4w")
    return int(found[1]) * _UNITS[found[2]]


@click.group(
    cls=Group,
    epilog="""\b
Examples:
  fairway token create grafana --role viewer --expires 90d > grafana.token
  fairway token list
  fairway token revoke grafana
""",
)
def token() -> None:
    """Create, list and revoke API tokens."""


@token.command(
    epilog="""\b
Examples:
  fairway token create grafana --role viewer --expires 90d > grafana.token
  fairway token create dana --role operator
  fairway token create alice-laptop --role member --user alice
\b
Roles; each includes those before it:
  viewer     reads
  member     submits jobs for its teams, and cancels and holds its own
  lead       reads, cancels and holds all jobs of its teams
  operator   operates the fleet: applies policy, changes all jobs
  admin      manages tokens and sign-ins
"""
)
@click.argument("name")
@click.option("--role", type=click.Choice([r.value for r in Role]), required=True, help="Role of the token.")
@click.option(
    "--user",
    metavar="LOGIN",
    help="Login of its user, as in the fleet file.  [default: the name of the token]",
)
@click.option(
    "--expires",
    type=ParsedParam("duration", parse_lifetime),
    metavar="TIME",
    help="Lifetime, such as 12h or 90d.  [default: unlimited]",
)
@server_options
def create(
    name: str, role: str, user: str | None, expires: int | None, context: str | None, url: str | None
) -> None:
    """Create a token and print it once.

    The token goes to stdout and all messages to stderr, so that you can redirect it to a file.
    """
    with connect(context, url) as client:
        token = client.create_token(name, Role(role), expires, user)
    click.echo(token.secret)
    expiry = f"expires {moment(token.expires_at, '')}" if token.expires_at else "never expires"
    owner = f" of {token.user}" if token.user != token.name else ""
    click.echo(
        f"Created the token {token.name}{owner} ({token.role}, {expiry}). It is not shown again.", err=True
    )


@token.command("list", epilog="\b\nExamples:\n  fairway token list\n  fairway token list -o json\n")
@server_options
@output_option
def list_(context: str | None, url: str | None, output: Format) -> None:
    """List all tokens, including expired and revoked ones, without their secrets."""
    with connect(context, url) as client:
        found = client.tokens()
    show(Listing(found, tokens_view(found, datetime.now(UTC))), output)


@token.command(epilog="\b\nExamples:\n  fairway token revoke grafana\n")
@click.argument("name")
@server_options
def revoke(name: str, context: str | None, url: str | None) -> None:
    """Revoke a token immediately."""
    with connect(context, url) as client:
        revoked = client.revoke_token(name)
    click.echo(f"revoked token {revoked.name}", err=True)
