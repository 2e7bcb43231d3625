"""`fairway logs`: what a job printed."""

from __future__ import annotations

import sys
from datetime import UTC, datetime

import click

from fairway.api.job_words import headline
from fairway.cli.connect import connect, server_options


@click.command(
    epilog="""\b
Examples:
  fairway logs 8f3k                  what its last attempt printed so far
  fairway logs -f 8f3k               and what it prints, until it is over
  fairway logs 8f3k --attempt 1      what the first attempt printed
  fairway logs 8f3k --node 3         of a job on several nodes, the fourth's
"""
)
@click.argument("job")
@click.option("-f", "--follow", is_flag=True, help="Go on until the job is over.")
@click.option("--attempt", type=click.IntRange(1), metavar="N", help="Which attempt, from 1.  [the last]")
@click.option("--node", type=click.IntRange(0), default=0, metavar="N", help="Which of its nodes, from 0.")
@server_options
def logs(
    *, job: str, follow: bool, attempt: int | None, node: int, context: str | None, url: str | None
) -> None:
    """Print what JOB printed.

    The job's output goes to stdout, byte for byte where it is UTF-8; everything else to stderr.
    """
    with connect(context, url) as client:
        shown = 0
        for part in client.follow_log(job, attempt=attempt, node=node, follow=follow):
            if shown and part.attempt != shown:
                click.echo(f"attempt {part.attempt}", err=True)
            shown = part.attempt
            click.echo(part.text, nl=False)
            sys.stdout.flush()
        if follow or not shown:
            seen = client.job(job)
            click.echo(headline(seen, datetime.now(UTC)), err=True)
            if not shown and seen.attempts:
                click.echo("it printed nothing", err=True)
