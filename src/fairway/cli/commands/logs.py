"""The command `fairway logs`: print a job's log."""

from __future__ import annotations

import click

from fairway.cli.connect import connect, server_options
from fairway.cli.shared.job_log import print_log


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
        print_log(client, job, attempt=attempt, node=node, follow=follow)
