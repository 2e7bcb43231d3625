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


def _change_options(function: Function) -> Function:
    """Add JOB..., the jobs to change, and the options."""
    argument = click.argument(
        "jobs", nargs=-1, required=True, metavar="JOB...", shell_complete=completion.open_jobs
    )
    return argument(server_options(output_option(function)))


def _change_jobs(
    change: Change,
    done: str,
    already: str,
    *,
    jobs: Sequence[str],
    context: str | None,
    url: str | None,
    output: Format,
) -> None:
    """Send the change and print the result: `done` of jobs that it changed, `already` of all others."""
    with connect(context, url) as client:
        changed = change(client, list(dict.fromkeys(jobs)))
    show_document(changed, lambda: _lines(changed, done, already), output)


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
  fairway get jobs --mine --state waiting -o json | jq -r '.[].id' | xargs fairway cancel
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

    JOB is an id, a name or an engine id. A job on hold keeps its place in the queue. Either all jobs are held
    or, if you may not hold one of them, none. The id of an array's first task holds the whole array.
    """
    _change_jobs(Client.hold, "Holding", "already on hold or finished", **options)


@click.command(
    epilog="""\b
Examples:
  fairway release 8f3k
  fairway get jobs --mine --state held -o json | jq -r '.[].id' | xargs fairway release
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
@_change_options
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
