"""Print a job's log: for `fairway logs`, and for `run` and `submit` with `--follow`."""

from __future__ import annotations

import sys
from datetime import UTC, datetime

import click

from fairway.cli.output.format import text_width
from fairway.cli.output.jobs import advice_lines
from fairway.client.client import Client
from fairway.model.job import ENDED_JOBS
from fairway.views.jobs import headline


def print_log(client: Client, job: str, *, attempt: int | None, node: int, follow: bool) -> None:
    """Print a job's log to stdout and its state to stderr."""
    attempt_shown = 0
    for part in client.follow_log(job, attempt=attempt, node=node, follow=follow):
        if attempt_shown and part.attempt != attempt_shown:
            click.echo(f"attempt {part.attempt}", err=True)
        attempt_shown = part.attempt
        click.echo(part.text, nl=False)
        sys.stdout.flush()
    if follow or not attempt_shown:
        detail = client.job(job)
        click.echo(headline(detail, datetime.now(UTC)), err=True)
        if not attempt_shown and detail.attempt_count:
            click.echo("the job has no output", err=True)
        if follow and detail.state in ENDED_JOBS and detail.use is not None:
            for line in advice_lines(client.why(detail.id), text_width()):
                click.echo(line.text, err=True)
