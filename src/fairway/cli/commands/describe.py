"""The command `fairway describe`: show one job in full."""

from __future__ import annotations

from datetime import UTC, datetime

import click

from fairway.cli import completion
from fairway.cli.connect import connect, server_options
from fairway.cli.output.format import Format, output_option, show_document, table_width, text_width
from fairway.cli.output.gpu_use import MAX_GPUS, gpu_lines
from fairway.cli.output.jobs import advice_lines, job_lines

_KINDS = ("job", "jobs")


@click.command(
    epilog="""\b
Examples:
  fairway describe 8f3k
  fairway describe train-llm           by name
  fairway describe hpc/1542            by Slurm job id
  fairway describe 8f3k -o json        with every attempt, for scripts
"""
)
@click.argument("what", nargs=-1, metavar="JOB", shell_complete=completion.jobs)
@server_options
@output_option
def describe(what: tuple[str, ...], context: str | None, url: str | None, output: Format) -> None:
    """Show a job: request, placement, attempts, events and cost.

    JOB is an id, a name or an engine id. `describe job 8f3k` works as well.
    """
    ids = what[1:] if len(what) > 1 and what[0] in _KINDS else what
    if len(ids) != 1:
        raise click.UsageError("give one job, as in `fairway describe 8f3k`")
    with connect(context, url) as client:
        job = client.job(ids[0])
        tasks = client.task_counts(job.id) if job.array is not None else None
        measured = job.use is not None and job.use.measured_gpu_seconds > 0
        use = client.job_use(job.id, gpus=MAX_GPUS) if measured else None
        why = client.why(job.id) if measured else None
    show_document(
        job,
        lambda: job_lines(
            job,
            tasks,
            datetime.now(UTC),
            text_width(),
            [
                *(gpu_lines(use, table_width()) if use else ()),
                *(advice_lines(why, text_width()) if why else ()),
            ],
        ),
        output,
    )
