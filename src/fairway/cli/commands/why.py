"""The command `fairway why`: why a job waits, and what would help."""

from __future__ import annotations

import click

from fairway.cli.connect import connect, server_options
from fairway.cli.output.format import Format, output_option, show_document, text_width
from fairway.cli.output.jobs import why_lines


@click.command(
    epilog="""\b
Examples:
  fairway why 8f3k            each thing that keeps it from starting, with what helps
  fairway why train-llm       by its name, if one job only has it
  fairway why 8f3k -o json    for programs: reasons by their codes
"""
)
@click.argument("job", metavar="JOB")
@server_options
@output_option
def why(job: str, context: str | None, url: str | None, output: Format) -> None:
    """Say why a job waits, and what would help.

    JOB is an id, or a name that one job only has. Of a job that runs or is over it says where, since when
    and how it ended.
    """
    with connect(context, url) as client:
        found = client.why(job)
    show_document(found, lambda: why_lines(found, text_width()), output)
