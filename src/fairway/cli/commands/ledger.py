"""The command group `fairway ledger`: migrate the database and create its first admin, without a server."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import click

from fairway.cli.parameter import ParsedParam

if TYPE_CHECKING:
    from fairway.settings import Settings


def _parse_step(text: str) -> str:
    """Parse a migration step and pad it to four digits, as `fairway ledger version` prints it."""
    if not re.fullmatch(r"[0-9]{1,4}", text):
        raise ValueError(f"{text!r} is not a step; write it like 5 or 0005")
    return text.zfill(4)


_STEP = ParsedParam("step", _parse_step)


@click.group(
    epilog="""\b
Examples:
  FAIRWAY_DATABASE_URL=postgresql://… fairway ledger version
  fairway ledger upgrade
  fairway ledger downgrade --to 5
  fairway ledger admin dana > dana.token
"""
)
def ledger() -> None:
    """Bring the ledger's tables forward or back, and make its first admin.

    Works on the database in FAIRWAY_DATABASE_URL or FAIRWAY_DATABASE_URL_FILE, whether a server runs or not.
    """


@ledger.command(epilog="\b\nExamples:\n  fairway ledger version\n")
def version() -> None:
    """Print the step the tables are at, and say what this Fairway wants."""
    from fairway.server import table_version

    found = table_version(_settings())
    click.echo(found.current or "none")
    if found.current is None:
        click.echo("no tables yet; make them with:  fairway ledger upgrade", err=True)
    elif found.current < found.newest:
        click.echo(f"this Fairway wants {found.newest}:  fairway ledger upgrade", err=True)
    elif found.current > found.newest:
        click.echo(f"a newer Fairway was here; this one knows steps up to {found.newest}", err=True)


@ledger.command(epilog="\b\nExamples:\n  fairway ledger upgrade\n")
def upgrade() -> None:
    """Bring the tables forward to what this Fairway wants.

    Any number may do so at once; running servers of the version before go on.
    """
    from fairway.server import upgrade_tables

    before, after = upgrade_tables(_settings())
    if before == after:
        click.echo(f"the tables are at step {after.current} already", err=True)
    else:
        click.echo(f"tables: {before.current or 'none'} → {after.current}", err=True)


@ledger.command(
    epilog="\b\nExamples:\n  fairway ledger downgrade --to 5\n  fairway ledger downgrade --to 4 --force\n"
)
@click.option("--to", type=_STEP, required=True, metavar="STEP", help="The step to go back to.")
@click.option("--force", is_flag=True, help="Also undo steps that lose something.")
def downgrade(*, to: str, force: bool) -> None:
    """Undo the newest steps of the tables, to let an older Fairway have the ledger.

    Run it with the newer Fairway: only that knows how to undo its own steps. Roll the servers back first.
    A step that loses something is undone only with --force, one that cannot be undone never. All or nothing.
    """
    from fairway.server import downgrade_tables

    before, after = downgrade_tables(_settings(), to, force=force)
    if before.current == after.current:
        click.echo(f"the tables are at step {after.current} already", err=True)
    else:
        click.echo(f"tables: {before.current} → {after.current}", err=True)


@ledger.command(epilog="\b\nExamples:\n  fairway ledger admin dana > dana.token\n")
@click.argument("name")
def admin(name: str) -> None:
    """Make an admin token called NAME and print it, this once.

    For the first token of a ledger that servers do not look after (migrate: no), and when all are lost.
    """
    from fairway.server import make_admin

    click.echo(make_admin(_settings(), name))
    click.echo(f"made admin token {name}; it is not shown again", err=True)


def _settings() -> Settings:
    from fairway.settings import read_settings

    return read_settings()
