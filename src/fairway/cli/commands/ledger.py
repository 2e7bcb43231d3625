"""The command group `fairway ledger`: migrate the database and create its first admin, without a server."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import click

from fairway.cli.group import Group
from fairway.cli.parameter import ParsedParam

if TYPE_CHECKING:
    from fairway.settings import Settings


def _parse_step(text: str) -> str:
    """Parse a migration step and pad it to four digits, as `fairway ledger version` prints it."""
    if not re.fullmatch(r"[0-9]{1,4}", text):
        raise ValueError(f"{text!r} is not a schema version such as 5 or 0005")
    return text.zfill(4)


_STEP = ParsedParam("step", _parse_step)


@click.group(
    cls=Group,
    epilog="""\b
Examples:
  FAIRWAY_DATABASE_URL=postgresql://… fairway ledger version
  fairway ledger upgrade
  fairway ledger downgrade --to 5
  fairway ledger admin dana > dana.token
""",
)
def ledger() -> None:
    """Migrate the database and create the first admin.

    The ledger is Fairway's PostgreSQL database, given by FAIRWAY_DATABASE_URL or FAIRWAY_DATABASE_URL_FILE.
    No server needs to be running.
    """


@ledger.command(epilog="\b\nExamples:\n  fairway ledger version\n")
def version() -> None:
    """Print the schema version of the database, and the one that this Fairway needs."""
    from fairway.server import table_version

    found = table_version(_settings())
    click.echo(found.current or "none")
    if found.current is None:
        click.echo("The database is empty. Create its tables with:  fairway ledger upgrade", err=True)
    elif found.current < found.newest:
        click.echo(
            f"This Fairway needs version {found.newest}. Migrate with:  fairway ledger upgrade", err=True
        )
    elif found.current > found.newest:
        click.echo(
            f"A newer Fairway has migrated this database; this one knows versions up to {found.newest}.",
            err=True,
        )


@ledger.command(epilog="\b\nExamples:\n  fairway ledger upgrade\n")
def upgrade() -> None:
    """Migrate the database to the schema version that this Fairway needs.

    This is safe to run several times at once. Running servers of the previous version continue to work.
    """
    from fairway.server import upgrade_tables

    before, after = upgrade_tables(_settings())
    if before == after:
        click.echo(f"The schema version is already {after.current}.", err=True)
    else:
        click.echo(f"Schema version: {before.current or 'none'} → {after.current}", err=True)


@ledger.command(
    epilog="\b\nExamples:\n  fairway ledger downgrade --to 5\n  fairway ledger downgrade --to 4 --force\n"
)
@click.option("--to", type=_STEP, required=True, metavar="VERSION", help="Schema version to go back to.")
@click.option("--force", is_flag=True, help="Also undo migrations that lose data.")
def downgrade(*, to: str, force: bool) -> None:
    """Undo the newest migrations, so that an older Fairway can use the database.

    Run this with the newer Fairway, which knows its own migrations, after rolling the servers back.
    Migrations that lose data need --force; some cannot be undone. Either all of them are undone or none.
    """
    from fairway.server import downgrade_tables

    before, after = downgrade_tables(_settings(), to, force=force)
    if before.current == after.current:
        click.echo(f"The schema version is already {after.current}.", err=True)
    else:
        click.echo(f"Schema version: {before.current} → {after.current}", err=True)


@ledger.command(epilog="\b\nExamples:\n  fairway ledger admin dana > dana.token\n")
@click.argument("name")
def admin(name: str) -> None:
    """Create an admin token and print it once.

    Use this for the first token of a database that servers do not migrate (`migrate: no`), or if all admin
    tokens are lost.
    """
    from fairway.server import make_admin

    click.echo(make_admin(_settings(), name))
    click.echo(f"Created the admin token {name}. It is not shown again.", err=True)


def _settings() -> Settings:
    from fairway.settings import read_settings

    return read_settings()
