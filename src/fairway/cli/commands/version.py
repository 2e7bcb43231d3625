"""The command `fairway version`."""

from __future__ import annotations

import click

from fairway import __version__


@click.command(epilog="\b\nExamples:\n  fairway version\n")
def version() -> None:
    """Print the version of Fairway."""
    click.echo(__version__)
