"""The command `fairway schema`."""

from __future__ import annotations

import json

import click

_EXAMPLES = """\b
Examples:
  fairway schema > fleet.schema.json
  fairway schema job > job.schema.json

\b
Then put this line at the top of a file, so that your editor completes and checks it:
  # yaml-language-server: $schema=fleet.schema.json
"""


@click.command(epilog=_EXAMPLES)
@click.argument("kind", type=click.Choice(["fleet", "job"]), default="fleet")
def schema(kind: str) -> None:
    """Print the JSON Schema of fleet files or job files."""
    from fairway.files import fleet_schema, job_schema

    click.echo(json.dumps(fleet_schema() if kind == "fleet" else job_schema(), indent=2))
