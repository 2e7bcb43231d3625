"""The command `fairway why`: why a job waits, and what would help."""

from __future__ import annotations

import time
from typing import Final

import click

from fairway.cli import completion
from fairway.cli.connect import connect, connect_reader, server_options
from fairway.cli.output.format import Format, Listing, output_option, show, show_document, text_width
from fairway.cli.output.jobs import waits_view, why_lines

_HELP_SECONDS: Final = 4.0
"""How long to wait for what would help, which the server verifies in the model."""
_PAUSE_SECONDS: Final = 0.4


@click.command(
    epilog="""\b
Examples:
  fairway why 8f3k
  fairway why train-llm       by name
  fairway why hpc/1542        by Slurm job id
  fairway why 8f3k -o json    with reason codes, for scripts
  fairway why --pool gpu      what keeps the jobs of a pool from starting
  fairway why --team vision   the same for a team and those inside it
"""
)
@click.argument("job", metavar="[JOB]", required=False, shell_complete=completion.jobs)
@click.option(
    "--pool",
    metavar="POOL",
    help="Sum the reasons of all jobs that wait for this pool.",
    shell_complete=completion.pools,
)
@click.option(
    "--team",
    metavar="TEAM",
    help="Sum the reasons of this team and its subteams.",
    shell_complete=completion.teams,
)
@server_options
@output_option
def why(
    job: str | None, pool: str | None, team: str | None, context: str | None, url: str | None, output: Format
) -> None:
    """Explain why a job is waiting and what would help.

    With --pool or --team, list what keeps their jobs from starting, by the GPU-hours that they have waited.

    JOB is an id, a name or an engine id. For a running or finished job, this shows where it ran, for how long
    and how it ended.
    """
    if (job is None) == (pool is None and team is None):
        raise click.UsageError("name a job, or a pool or team with --pool or --team")
    if job is None:
        with connect(context, url) as client:
            sums = client.waits(pool=pool, team=team)
        show(Listing(sums, waits_view(sums, pool=pool, team=team)), output)
        return
    with connect_reader(context, url) as client:
        found = client.why(job)
        until = time.monotonic() + _HELP_SECONDS
        while found.alternatives_pending and time.monotonic() < until:
            time.sleep(_PAUSE_SECONDS)
            found = client.why(job)
    show_document(found, lambda: why_lines(found, text_width()), output)
