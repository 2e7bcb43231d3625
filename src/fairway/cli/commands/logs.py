"""The command `fairway logs`: print a job's log."""

from __future__ import annotations

import click

from fairway.cli import completion
from fairway.cli.connect import connect, server_options
from fairway.cli.shared.job_log import print_log


@click.command(
    epilog="""\b
Examples:
  fairway logs 8f3k                  output of the last attempt so far
  fairway logs -f 8f3k               follow the output until the job ends
  fairway logs 8f3k --attempt 1      output of the first attempt
  fairway logs 8f3k --node 3         output of the fourth node of a multi-node job
"""
)
@click.argument("job", shell_complete=completion.jobs)
@click.option("-f", "--follow", is_flag=True, help="Follow the output until the job ends.")
@click.option(
    "--attempt",
    type=click.IntRange(1),
    metavar="N",
    help="Number of the attempt, from 1.  [default: the last]",
)
@click.option("--node", type=click.IntRange(0), default=0, metavar="N", help="Index of the node, from 0.")
@server_options
def logs(
    *, job: str, follow: bool, attempt: int | None, node: int, context: str | None, url: str | None
) -> None:
    """Print the output of a job.

    JOB is an id, a name or an engine id. The output goes to stdout and all messages to stderr.
    """
    with connect(context, url) as client:
        print_log(client, job, attempt=attempt, node=node, follow=follow)
