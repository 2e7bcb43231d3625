"""The command `fairway schema`."""

from __future__ import annotations

import json

import click

_EXAMPLES = """\b
Examples:
  fairway schema > fleet.schema.json
  fairway schema job > job.schema.json

\b
Then let your editor complete and check the files, by this as their first line:
  # yaml-language-server: $schema=fleet.schema.json
"""


@click.command(epilog=_EXAMPLES)
@click.argument("kind", type=click.Choice(["fleet", "job"]), default="fleet")
def schema(kind: str) -> None:
    """Print the JSON Schema of fleet or job files, for editors."""
    from fairway.files import fleet_schema, job_schema

    click.echo(json.dumps(fleet_schema() if kind == "fleet" else job_schema(), indent=2))
