"""The command `fairway submit`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Unpack

import click

from fairway.cli.connect import server_options
from fairway.cli.output.format import Format, output_option
from fairway.cli.shared.submit import Flags, SubmitOptions, given, job_flags, send, sending_options

if TYPE_CHECKING:
    from fairway.files import JobReport
    from fairway.files.yaml.tree import Mapping as Tree
    from fairway.model.job import JobSpec

_EXAMPLES = """\b
Examples:
  fairway submit job.yaml                          a job file; several jobs in it are several jobs
  fairway submit train.sh                          a script with #SBATCH lines
  fairway submit k8s-job.yaml --team research      a Kubernetes Job; flags count before the file
  fairway submit job.yaml --dry-run                what would be sent; could it ever run
  make-job | fairway submit -                      from a pipe
"""


@click.command(epilog=_EXAMPLES)
@click.argument("files", nargs=-1, required=True, metavar="FILE...")
@job_flags
@sending_options
@server_options
@output_option
def submit(
    *,
    files: tuple[str, ...],
    hold: bool,
    as_user: str | None,
    key: str | None,
    dry_run: bool,
    follow: bool,
    context: str | None,
    url: str | None,
    output: Format,
    **flags: Unpack[Flags],
) -> None:
    """Submit job files, scripts with #SBATCH lines, or Kubernetes Jobs.

    All of them or, if one has a fault, none. What a flag says counts instead of what the file says.
    """
    said = given(flags)
    jobs = _jobs([_report(file, said) for file in files])
    send(jobs, SubmitOptions(hold, as_user, key, dry_run, follow, context, url, output))


def _report(file: str, said: Tree) -> JobReport:
    from fairway.files import check_job_bytes, check_job_file
    from fairway.files.job.load import LARGEST

    if file == "-":
        return check_job_bytes(sys.stdin.buffer.read(4 * LARGEST + 1), "<stdin>", said)
    return check_job_file(Path(file), said)


def _jobs(reports: list[JobReport]) -> list[JobSpec]:
    """Return the jobs of all files. Prints their faults and exits with 1 if one is an error."""
    from fairway.cli.output.faults import show_fault
    from fairway.cli.output.format import count

    for report in reports:
        for fault in report.faults:
            show_fault(fault)
    refused = [report for report in reports if report.jobs is None]
    if refused:
        for report in refused:
            errors = sum(fault.severity == "error" for fault in report.faults)
            click.echo(f"{report.source}: {count(errors, 'error')}, nothing was submitted", err=True)
        raise click.exceptions.Exit(1)
    return [job for report in reports for job in report.jobs or ()]
