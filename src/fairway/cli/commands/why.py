"""The command `fairway why`: why a job waits, and what would help."""

from __future__ import annotations

import click

from fairway.cli import completion
from fairway.cli.connect import connect_reader, server_options
from fairway.cli.output.format import Format, output_option, show_document, text_width
from fairway.cli.output.jobs import why_lines


@click.command(
    epilog="""\b
Examples:
  fairway why 8f3k
  fairway why train-llm       by name
  fairway why hpc/1542        by Slurm job id
  fairway why 8f3k -o json    with reason codes, for scripts
"""
)
@click.argument("job", metavar="JOB", shell_complete=completion.jobs)
@server_options
@output_option
def why(job: str, context: str | None, url: str | None, output: Format) -> None:
    """Explain why a job is waiting and what would help.

    JOB is an id, a name or an engine id. For a running or finished job, this shows where it ran, for how long
    and how it ended.
    """
    with connect_reader(context, url) as client:
        found = client.why(job)
    show_document(found, lambda: why_lines(found, text_width()), output)
