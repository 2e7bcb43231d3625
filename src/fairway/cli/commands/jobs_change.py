"""The commands `fairway cancel`, `hold`, `release` and `keep`: change jobs by id in one request."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import click

from fairway.cli.connect import connect, server_options
from fairway.cli.output.format import Format, Function, ScreenLine, count, output_option, show_document
from fairway.client.client import Client
from fairway.model.text import first_few, parse_duration
from fairway.wire import jobs as wire

_MAX_LISTED = 20

Change = Callable[[Client, Sequence[str]], wire.Changed]


def _change_options(function: Function) -> Function:
    """Add JOB..., the ids of the jobs to change, and the options."""
    argument = click.argument("jobs", nargs=-1, required=True, metavar="JOB...")
    return argument(server_options(output_option(function)))


def _change_jobs(
    change: Change, done: str, *, jobs: Sequence[str], context: str | None, url: str | None, output: Format
) -> None:
    """Send the change and print the result; `done` is the verb for the jobs it changed."""
    with connect(context, url) as client:
        changed = change(client, list(dict.fromkeys(jobs)))
    show_document(changed, lambda: _lines(jobs, changed, done), output)


def _lines(ids: Sequence[str], changed: wire.Changed, done: str) -> list[ScreenLine]:
    lines: list[ScreenLine] = []
    requested = {job_id.lower() for job_id in ids}
    named = [job_id for job_id in changed.changed if job_id in requested]
    tasks = len(changed.changed) - len(named)
    if changed.changed:
        noun, array = ("more task", "the same array") if named else ("task", "the array")
        parts = (first_few(named, _MAX_LISTED), f"{count(tasks, noun)} of {array}" if tasks else "")
        lines.append(ScreenLine(f"{done} {' and '.join(filter(None, parts))}"))
    unchanged = [job_id for job_id in changed.unchanged if job_id in requested]
    if unchanged:
        is_ = "is" if len(unchanged) == 1 else "are"
        lines.append(ScreenLine(f"{first_few(unchanged, _MAX_LISTED)} {is_} over, or already so"))
    return lines or [ScreenLine("nothing to do")]


@click.command(
    epilog="""\b
Examples:
  fairway cancel 8f3k
  fairway cancel 8f3k 8f3m
  fairway get jobs --mine --state waiting -o json | jq -r '.[].id' | xargs fairway cancel
"""
)
@_change_options
def cancel(**options: Any) -> None:
    """End jobs, whether they run or wait.

    All of them, or none if one is not yours. The first task of an array stands for the whole array.
    """
    _change_jobs(Client.cancel, "cancelling", **options)


@click.command(
    epilog="""\b
Examples:
  fairway hold 8f3k
  fairway hold 8f3k 8f3m
"""
)
@_change_options
def hold(**options: Any) -> None:
    """Keep jobs from starting; what runs goes on.

    All of them, or none if one is not yours. The first task of an array stands for the whole array.
    """
    _change_jobs(Client.hold, "holding", **options)


@click.command(
    epilog="""\b
Examples:
  fairway release 8f3k
  fairway get jobs --mine --state held -o json | jq -r '.[].id' | xargs fairway release
"""
)
@_change_options
def release(**options: Any) -> None:
    """Let held jobs start.

    All of them, or none if one is not yours. The first task of an array stands for the whole array.
    """
    _change_jobs(Client.release, "releasing", **options)


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
    help="How long, from now, e.g. 4h; the fleet file bounds it.",
)
@click.option("--reason", default="", metavar="TEXT", help="Shown on the job.")
@_change_options
def keep(
    jobs: Sequence[str], duration: str, reason: str, context: str | None, url: str | None, output: Format
) -> None:
    """Have idle rules leave jobs alone for a while.

    All of them, or none if one is not yours; jobs that were not started by Fairway too. What was asked for
    before is replaced. After that time the rules begin again, with their first step.
    """
    seconds = parse_duration(duration)
    if seconds is None:
        raise click.BadParameter(
            f"{duration!r} is no length of time: write 30m, 4h or 1d", param_hint="--for"
        )
    with connect(context, url) as client:
        kept = client.keep(list(dict.fromkeys(jobs)), seconds, reason)
    show_document(kept, lambda: _kept_lines(kept), output)


def _kept_lines(kept: wire.Kept) -> list[ScreenLine]:
    lines = []
    if kept.kept:
        until = f"{kept.until:%Y-%m-%d %H:%M} UTC"
        lines.append(ScreenLine(f"keeping {first_few(kept.kept, _MAX_LISTED)} until {until}"))
    if kept.over:
        lines.append(ScreenLine(f"{first_few(kept.over, _MAX_LISTED)} over: nothing to keep"))
    return lines
