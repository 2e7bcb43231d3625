"""`fairway schema`."""

from __future__ import annotations

import json

import click

_EXAMPLES = """\b
Examples:
  fairway schema > fleet.schema.json

\b
Then let your editor complete and check fleet files, by this as their first line:
  # yaml-language-server: $schema=fleet.schema.json
"""


@click.command(epilog=_EXAMPLES)
def schema() -> None:
    """Print the JSON Schema of fleet files, for editors."""
    from fairway.files import fleet_schema

    click.echo(json.dumps(fleet_schema(), indent=2))
