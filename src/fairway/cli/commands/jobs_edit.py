"""The commands `fairway move`, `resize`, `set-time` and `set-priority`: change a job that has not started."""

from __future__ import annotations

from typing import Any

import click

from fairway.cli import completion
from fairway.cli.connect import connect, server_options
from fairway.cli.output.format import Format, Function, ScreenLine, output_option, show_document
from fairway.cli.parameter import ParsedParam
from fairway.model.text import parse_duration
from fairway.wire import jobs as wire


def _seconds(text: str) -> int:
    seconds = parse_duration(text)
    if not seconds:
        raise ValueError(f"{text!r} is not a duration; use 30m, 4h or 1d")
    return seconds


def _edit_options(function: Function) -> Function:
    """Add JOB and the options of every command."""
    argument = click.argument("job", metavar="JOB", shell_complete=completion.open_jobs)
    dry_run = click.option("--dry-run", is_flag=True, help="Check the change, and change nothing.")
    return argument(dry_run(server_options(output_option(function))))


def _edit(
    job: str, *, dry_run: bool, context: str | None, url: str | None, output: Format, **values: Any
) -> None:
    """Send the change and print what it changes."""
    with connect(context, url) as client:
        changed = client.change(job, dry_run=dry_run, **values)
    show_document(changed, lambda: _lines(changed, dry_run=dry_run), output)


def _lines(changed: wire.JobChanged, *, dry_run: bool) -> list[ScreenLine]:
    if not changed.changes:
        return [ScreenLine(f"{changed.id} is so already")]
    text = ", ".join(f"{one.name} {one.before} → {one.after}" for one in changed.changes)
    if dry_run:
        return [ScreenLine(f"{changed.id} can be changed: {text}")]
    return [ScreenLine(f"Changing {changed.id}: {text}")]


@click.command(
    epilog="""\b
Examples:
  fairway move 8f3k --pool cloud-a100
"""
)
@click.option("--pool", required=True, metavar="POOL", help="Pool.", shell_complete=completion.pools)
@_edit_options
def move(**options: Any) -> None:
    """Move a waiting job to another pool.

    A job keeps the time of its submission. One that was sent to its cluster already moves within that cluster
    only; one that has run before does not move.
    """
    _edit(**options)


@click.command(
    epilog="""\b
Examples:
  fairway resize 8f3k --gpus 4
  fairway resize 8f3k --gpus 8 --nodes 2
"""
)
@click.option("--nodes", type=click.IntRange(1), metavar="N", help="Number of nodes.")
@click.option("--gpus", type=click.IntRange(1), metavar="N", help="GPUs or slices on each node.")
@_edit_options
def resize(gpus: int | None, nodes: int | None, **options: Any) -> None:
    """Change how many GPUs or nodes a waiting job requests.

    The command of a job that its cluster already has does not change: on Kubernetes only the GPUs of jobs on
    one node can be changed, and on Slurm a command for one node does not get more nodes.
    """
    if gpus is None and nodes is None:
        raise click.UsageError("give --gpus, --nodes or both")
    _edit(gpus=gpus, nodes=nodes, **options)


@click.command(
    epilog="""\b
Examples:
  fairway set-time 8f3k 4h
  fairway set-time 8f3k 1d12h
"""
)
@_edit_options
@click.argument("time", type=ParsedParam("duration", _seconds), metavar="TIME")
def set_time(time: int, **options: Any) -> None:
    """Change the time limit of a waiting job.

    With a shorter limit, a job may start before a larger one that waits for GPUs which become free later.
    """
    _edit(time_seconds=time, **options)


@click.command(
    epilog="""\b
Examples:
  fairway set-priority 8f3k low
"""
)
@_edit_options
@click.argument("priority", metavar="PRIORITY")
def set_priority(**options: Any) -> None:
    """Change the priority of a waiting job.

    Only to a priority that its team may use. A job that its cluster has already cannot change between a
    preemptible priority and another one on Kubernetes, or from or to an urgent one on Slurm.
    """
    _edit(**options)
