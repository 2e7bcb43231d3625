"""The commands `fairway cancel`, `hold`, `release` and `keep`: change jobs by id in one request."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import click

from fairway.cli import completion
from fairway.cli.connect import connect, server_options
from fairway.cli.output.format import Format, Function, ScreenLine, output_option, show_document
from fairway.client.client import Client
from fairway.model.text import first_few, parse_duration
from fairway.wire import jobs as wire

_MAX_LISTED = 20

Change = Callable[[Client, Sequence[str]], wire.Changed]


def _job_options(function: Function, *, required: bool = True) -> Function:
    """Add JOB..., the jobs to change, and the options of every command."""
    argument = click.argument(
        "jobs", nargs=-1, required=required, metavar="JOB...", shell_complete=completion.open_jobs
    )
    return argument(server_options(output_option(function)))


def _change_options(function: Function) -> Function:
    """Add the jobs to change, by name or all of the caller's own."""
    for option in (
        click.option("-y", "--yes", is_flag=True, help="Do not ask for confirmation."),
        click.option("--name", metavar="NAME", help="With --mine, only jobs with this name."),
        click.option(
            "--state",
            type=click.Choice(["running", "waiting", "held"]),
            help="With --mine, only jobs in this state; waiting includes queued.",
        ),
        click.option("--mine", is_flag=True, help="All your unfinished jobs instead of JOB."),
    ):
        function = option(function)
    return _job_options(function, required=False)


def _change_jobs(
    change: Change,
    done: str,
    already: str,
    *,
    jobs: Sequence[str],
    mine: bool,
    state: str | None,
    name: str | None,
    yes: bool,
    context: str | None,
    url: str | None,
    output: Format,
) -> None:
    """Send the change and print the result: `done` of jobs that it changed, `already` of all others."""
    if mine == bool(jobs):
        raise click.UsageError("name jobs, or give --mine" if not mine else "give --mine or JOB, not both")
    if not mine and (state or name):
        raise click.UsageError("--state and --name need --mine")
    with connect(context, url) as client:
        if mine:
            jobs = _jobs_of_caller(client, state, name)
            if not jobs:
                click.echo("you have no such jobs", err=True)
                return
            if not yes:
                many = "this job" if len(jobs) == 1 else f"these {len(jobs)} jobs"
                click.echo(first_few(jobs, _MAX_LISTED), err=True)
                click.confirm(f"{done} {many}. Continue?", abort=True, err=True)
        changed = change(client, list(dict.fromkeys(jobs)))
    show_document(changed, lambda: _lines(changed, done, already), output)


def _jobs_of_caller(client: Client, state: str | None, name: str | None) -> list[str]:
    """Return the ids of the caller's unfinished jobs.

    The id of an array's first task means the whole array, so it is left out unless all open tasks match.
    """
    states = {None: ["open"], "waiting": ["queued", "waiting"]}.get(state, [str(state)])
    ids = {job.id: job.array for job in client.jobs(user=client.whoami().user, states=states, name=name)}
    for first in [job for job, array in ids.items() if job == array]:
        if any(task.id not in ids for task in client.jobs(array=first, states=["open"])):
            del ids[first]
            click.echo(
                f"{first} is not included: it is the first task of an array in several states", err=True
            )
    return list(ids)


def _lines(changed: wire.Changed, done: str, already: str) -> list[ScreenLine]:
    lines: list[ScreenLine] = []
    if changed.changed:
        lines.append(ScreenLine(f"{done} {first_few(changed.changed, _MAX_LISTED)}"))
    if unchanged := changed.unchanged:
        is_ = "is" if len(unchanged) == 1 else "are"
        lines.append(ScreenLine(f"{first_few(unchanged, _MAX_LISTED)} {is_} {already}"))
    return lines


@click.command(
    epilog="""\b
Examples:
  fairway cancel 8f3k
  fairway cancel 8f3k train-llm hpc/1542      ids, names and Slurm job ids
  fairway cancel --mine --state waiting       all your waiting jobs, after a confirmation
"""
)
@_change_options
def cancel(**options: Any) -> None:
    """Cancel running or waiting jobs.

    JOB is an id, a name or an engine id. Either all jobs are cancelled or, if you may not cancel one of them,
    none. The id of an array's first task cancels the whole array.
    """
    _change_jobs(Client.cancel, "Cancelling", "already cancelled or finished", **options)


@click.command(
    epilog="""\b
Examples:
  fairway hold 8f3k
  fairway hold 8f3k 8f3m
"""
)
@_change_options
def hold(**options: Any) -> None:
    """Hold waiting jobs. Running jobs continue.

    A service on Kubernetes (a Deployment, a Ray cluster) is stopped until it is released.

    JOB is an id, a name or an engine id. A job on hold keeps its place in the queue. Either all jobs are held
    or, if you may not hold one of them, none. The id of an array's first task holds the whole array.
    """
    _change_jobs(Client.hold, "Holding", "already on hold or finished", **options)


@click.command(
    epilog="""\b
Examples:
  fairway release 8f3k
  fairway release --mine --yes
"""
)
@_change_options
def release(**options: Any) -> None:
    """Release jobs that are on hold.

    JOB is an id, a name or an engine id. Either all jobs are released or, if you may not release one of them,
    none. The id of an array's first task releases the whole array.
    """
    _change_jobs(Client.release, "Releasing", "not on hold", **options)


@click.command(
    epilog="""\b
Examples:
  fairway keep 8f3k --for 4h
  fairway keep 8f3k --for 30m --reason "debugging, back after lunch"
"""
)
@click.option(
    "--for",
    "duration",
    required=True,
    metavar="TIME",
    help="Duration from now, such as 4h. The fleet file limits it.",
)
@click.option("--reason", default="", metavar="TEXT", help="Reason, shown with the job.")
@_job_options
def keep(
    jobs: Sequence[str], duration: str, reason: str, context: str | None, url: str | None, output: Format
) -> None:
    """Exempt jobs from idle rules for some time.

    JOB is an id, a name or an engine id; jobs made with sbatch or kubectl count too. A new duration
    replaces the previous one. Afterwards, the idle rules start again with their first step. Either all jobs
    are exempted or, if you may not change one of them, none.
    """
    seconds = parse_duration(duration)
    if seconds is None:
        raise click.BadParameter(f"{duration!r} is not a duration; use 30m, 4h or 1d", param_hint="--for")
    with connect(context, url) as client:
        kept = client.keep(list(dict.fromkeys(jobs)), seconds, reason)
    show_document(kept, lambda: _kept_lines(kept), output)


def _kept_lines(kept: wire.Kept) -> list[ScreenLine]:
    lines = []
    if kept.kept:
        until = f"{kept.until:%Y-%m-%d %H:%M} UTC"
        lines.append(ScreenLine(f"Idle rules ignore {first_few(kept.kept, _MAX_LISTED)} until {until}"))
    if kept.over:
        are = "has" if len(kept.over) == 1 else "have"
        lines.append(ScreenLine(f"{first_few(kept.over, _MAX_LISTED)} {are} already finished"))
    return lines
